"""Reads and changes the policy of a running server.

The request goes to the server directly: no proxy gets the key, and no redirect is
followed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from vllm_balance.core.policies.switch_ticket import NAMES
from vllm_balance.errors import UsageError

KEY = "BALANCE_OPERATOR_KEY"
"""The variable with the key. Not VLLM_…, because upstream warns of unknown ones."""
PATH = "/balance_policy"
ANSWER_S = 30.0
"""How long an answer may take: a rank answers between two steps."""
SWITCH_S, PAUSE_S = 60.0, 0.2
"""How long the ranks may take to switch, and the time between two requests."""
REPAIRS = {
    401: f"set {KEY} to the key that the server was started with",
    404: f"start the server, of this wheel, with {KEY} in its environment",
    409: "it was started with --data-parallel-balance off, or has no ranks that such a "
    "policy needs; start it with another, and it can be switched to off",
}


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


def address_of(url: str) -> SplitResult:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise UsageError(
        f"{url}: is no address of a server; give http://HOST:PORT, or https, "
        "and an address of IPv6 in brackets."
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tell the policy of a running server, or change it on all ranks in one step. "
        f"The server and this command need the same {KEY}."
    )
    parser.add_argument("url", metavar="URL", help="of one of its API servers")
    parser.add_argument("name", nargs="?", choices=NAMES, help="the policy to take")
    text = "seconds to wait until the ranks have taken it (default: 60)"
    parser.add_argument("--timeout", type=float, default=SWITCH_S, help=text)


def run(chosen: argparse.Namespace) -> None:
    if chosen.name is None:
        print(_describe(ask(chosen.url)))
    else:
        before = ask(chosen.url)["policy"]
        state = change(chosen.url, chosen.name, chosen.timeout)
        print(f"{_describe(state)} (before: {before})")


def change(
    url: str,
    name: str,
    timeout: float = SWITCH_S,
    insecure: bool = False,
    send: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Switch all ranks to a policy, and wait until they have it; returns as `ask`.

    Idle ranks switch with the next request, which `send`, if given, sends.
    """
    state, deadline = ask(url, name, insecure), time.monotonic() + timeout
    while state["policy"] != state["wanted"] == name and (send or state["running"]):
        if time.monotonic() > deadline:
            raise UsageError(
                f"{url}: {name} is wanted, and was not taken in {timeout:g} s; it may "
                "take 32 long steps after off, or a step hangs: see `vllm-balance "
                "doctor --pid`."
            )
        if send and not state["running"]:
            send()
        time.sleep(PAUSE_S)
        state = ask(url, insecure=insecure)
    if state["wanted"] != name:
        raise UsageError(
            f"{url}: another operator has asked for {state['wanted']} meanwhile."
        )
    return state


def _describe(state: Mapping[str, Any]) -> str:
    policy, wanted = state["policy"], state["wanted"]
    if policy == wanted:
        return str(policy)
    if state["running"]:
        when = "with one of 32 steps" if policy == "off" else "with a step"
        return f"{policy}; {wanted} is wanted and comes {when}"
    return f"{policy}; {wanted} comes with the first step of the next request"


def ask(url: str, name: str | None = None, insecure: bool = False) -> dict[str, Any]:
    """The `policy` of a server, the one `wanted`, and whether it is `running` requests.

    With a name it is asked to take that policy first.
    """
    parts = address_of(url)
    where = f"{url.rstrip('/')}{PATH}"
    try:
        key = key_of(KEY)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    if not key:
        raise UsageError(f"{where}: {REPAIRS[401]}.")
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=ANSWER_S
    )
    if parts.scheme == "https":
        context = ssl.create_default_context()
        if insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=ANSWER_S, context=context
        )
    try:
        with contextlib.closing(connection):
            body = None if name is None else json.dumps({"policy": name})
            headers = {"Authorization": f"Bearer {key}"}
            path = parts.path.rstrip("/") + PATH
            connection.request("GET" if name is None else "POST", path, body, headers)
            answer = connection.getresponse()
            text = answer.read(1 << 20).decode(errors="replace")
    except TimeoutError:
        raise UsageError(
            f"{where}: no answer in {ANSWER_S:g} s; a step may be long, or hang: see "
            "`vllm-balance doctor --pid`."
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UsageError(f"{where}: no answer ({cause(error)}).") from None
    if answer.status == http.client.OK:
        with contextlib.suppress(LookupError, TypeError, ValueError):
            state = json.loads(text)
            return {key: state[key] for key in ("policy", "wanted", "running")}
    raise UsageError(f"{refusal(where, answer.status, answer.reason, text, REPAIRS)}.")


def refusal(
    url: str, status: int, reason: str, text: str, repairs: Mapping[int, str]
) -> str:
    """A message on an HTTP error, with its repair, without a full stop."""
    answer = f"{url}: answers with status {status} ({reason})"
    with contextlib.suppress(LookupError, TypeError, ValueError):
        answer += f", {json.loads(text)['error']['message']!r:.300}"
    return f"{answer}; {repairs[status]}" if status in repairs else answer


def cause(error: BaseException | None) -> str:
    """The system's message of an error, without those of the libraries around it."""
    text = str(error) or type(error).__name__
    while error is not None:
        of_system = isinstance(error, OSError) and error.strerror
        text = str(of_system) if of_system else text
        error = getattr(error, "reason", None) or error.__cause__ or error.__context__
        error = error if isinstance(error, BaseException) else None
    if "certificate verify failed" in text:
        text += "; name its authority in SSL_CERT_FILE"
    return text
