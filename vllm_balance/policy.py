"""The policy of a server that runs: what it is now, and another one.

It asks the server directly: no proxy gets the key, and no redirect is followed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from vllm_balance.core.policies.wishes import NAMES

KEY = "BALANCE_OPERATOR_KEY"
"""The variable with the key. Not VLLM_…: upstream warns of those that it does not
know."""
PATH = "/balance_policy"
ANSWER_S = 30.0
"""A rank answers between two steps."""
PAUSE_S = 0.2


class RefusedError(Exception):
    """Says what is wrong, and what to do."""


def key_of(variable: str) -> str:
    """The key in a variable, without the newline with which files and Secrets end.

    Raises:
        ValueError: no header can have it. The key is not in the text.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError(
            f"{variable}: expected one line of ASCII letters, digits and signs, found "
            "other characters; make a new key, as with `openssl rand -hex 32`"
        )
    return key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tell the policy of a running server, or change it on all ranks in one step. "
        f"The server and this command need the same {KEY}."
    )
    parser.add_argument("url", metavar="URL", help="of one of its API servers")
    parser.add_argument("name", nargs="?", choices=NAMES, help="the policy to take")
    text = "seconds to wait until the ranks have taken it (default: 60)"
    parser.add_argument("--timeout", type=float, default=60.0, help=text)


def run(chosen: argparse.Namespace) -> int:
    try:
        if chosen.name is None:
            print(_describe(_ask(chosen.url)))
        else:
            print(change(chosen.url, chosen.name, chosen.timeout))
    except RefusedError as error:
        print(f"{chosen.url}: {error}", file=sys.stderr)
        return 1
    return 0


def change(url: str, name: str, timeout: float = 60.0) -> str:
    """Have all ranks take a policy, and wait until they have."""
    before = _ask(url)["policy"]
    state, end = _ask(url, name), time.monotonic() + timeout
    while state["policy"] != state["wanted"] == name and state["running"]:
        if time.monotonic() > end:
            raise RefusedError(
                f"{name} is wanted, and was not taken in {timeout:g} s; it may take "
                "32 long steps after off, or a step hangs: see `vllm-balance doctor "
                "--pid`"
            )
        time.sleep(PAUSE_S)
        state = _ask(url)
    if state["wanted"] != name:
        raise RefusedError(
            f"another operator has asked for {state['wanted']} meanwhile"
        )
    return f"{_describe(state)} (before: {before})"


def _describe(state: dict[str, Any]) -> str:
    policy, wanted = state["policy"], state["wanted"]
    if policy == wanted:
        return str(policy)
    if state["running"]:
        when = "with one of 32 steps" if policy == "off" else "with a step"
        return f"{policy}; {wanted} is wanted and comes {when}"
    return f"{policy}; {wanted} comes with the first step of the next request"


def _ask(url: str, name: str | None = None) -> dict[str, Any]:
    """What the server says of its policy, also after a wish for another."""
    parts = urlsplit(url)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    try:
        connect, host, port = kinds[parts.scheme], parts.hostname, parts.port
    except (KeyError, ValueError):
        host = None
    if not host:
        raise RefusedError("expected a URL as http://HOST:PORT, of an API server")
    try:
        key = key_of(KEY)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if not key:
        raise RefusedError(f"set {KEY} to the key that the server was started with")
    try:
        connection = connect(host, port, timeout=ANSWER_S)
        try:
            body = None if name is None else json.dumps({"policy": name})
            headers = {"Authorization": f"Bearer {key}"}
            where = parts.path.rstrip("/") + PATH
            connection.request("GET" if name is None else "POST", where, body, headers)
            answer = connection.getresponse()
            text = answer.read(1 << 20).decode(errors="replace")
        finally:
            connection.close()
    except TimeoutError:
        raise RefusedError(
            f"no answer in {ANSWER_S:g} s; a step may be long, or hang: see "
            "`vllm-balance doctor --pid`"
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        said = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            said += "; name its authority in SSL_CERT_FILE"
        raise RefusedError(f"no answer: {said}") from None
    if answer.status == http.client.NOT_FOUND:
        raise RefusedError(
            f"no such route; start the server, of this wheel, with {KEY} in its "
            "environment"
        )
    try:
        found = json.loads(text)
        if answer.status == http.client.OK:
            return {key: found[key] for key in ("policy", "wanted", "running")}
        said = found["error"]["message"]
    except (KeyError, TypeError, ValueError):
        said = text.strip()[:200]
    raise RefusedError(f"status {answer.status}: {said}")
