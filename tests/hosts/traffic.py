"""Clients that ask without a pause, and check every answer."""

import collections
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import requests

CLIENTS = 4
"""For each rank."""


class Traffic:
    """Clients of some servers; each asks until it is refused, or until the end.

    An answer that is not what Hugging Face writes is an AssertionError at the end: late
    answers and errors are allowed, wrong ones never.
    """

    def __init__(self, servers, samples, ranks):
        clients = CLIENTS * ranks
        self._pool = ThreadPoolExecutor(clients)
        self._changed = threading.Condition()
        self._ended = False
        self._answers = 0
        self._errors: list[str] = []
        self._wrong: list[str] = []
        self._clients = [
            self._pool.submit(self._ask, server, samples[first:] + samples[:first])
            for first, server in zip(range(clients), itertools.cycle(servers))
        ]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._ended = True
        self._pool.shutdown()
        assert not self._wrong, "\n".join(self._wrong)
        if kind is None:  # else the error of the body says more
            for client in self._clients:
                client.result()

    def more(self, answers, timeout):
        """Wait for so many more answers; the seconds it took.

        AssertionError after `timeout` seconds.
        """
        start = time.monotonic()
        with self._changed:
            wanted = self._answers + answers
            done = self._changed.wait_for(lambda: self._answers >= wanted, timeout)
        assert done, f"{wanted - self._answers} of {answers} answers still missing"
        assert not self._errors, self._errors[0]
        return time.monotonic() - start

    def refused(self, timeout):
        """Wait until every client has got an error; how many have which.

        AssertionError if one has none after `timeout` seconds.
        """
        with self._changed:
            all_of_them = len(self._clients)
            self._changed.wait_for(lambda: len(self._errors) == all_of_them, timeout)
        missing = all_of_them - len(self._errors)
        assert not missing, f"{missing} clients have no error after {timeout:g} s"
        return dict(collections.Counter(self._errors))

    def _ask(self, server, samples):
        for turn, sample in enumerate(itertools.cycle(samples)):
            if self._ended:
                return
            expected = list(sample.tokens[: len(sample.tokens) - turn % 13])
            error, tokens = _answer(server, sample, len(expected))
            with self._changed:
                if error:
                    self._errors.append(error)
                elif tokens == expected:
                    self._answers += 1
                else:
                    self._wrong.append(f"{expected} expected, {tokens} found")
                self._changed.notify_all()
            if error:
                return


def _answer(server, sample, length):
    """An error, or the tokens."""
    body = {"prompt": list(sample.prompt), "max_tokens": length, "temperature": 0}
    try:
        response = server.ask(**body, return_token_ids=True)
    except requests.ConnectionError as error:
        return type(error).__name__, []
    if response.status_code != 200:
        return f"HTTP {response.status_code}", []
    return "", response.json()["choices"][0]["token_ids"]
