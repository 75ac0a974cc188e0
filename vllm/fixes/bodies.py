# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Refuses bodies of requests by their bytes, before anything parses them."""

import msgspec
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from vllm.fixes import grammars
from vllm.fixes.limits import RefusalError, limit, too_large

BODY = "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
MOST_BODY = limit(BODY, 32 << 20)
"""Upstream's name and limit, of its front-end in Rust."""


class _Grammars(msgspec.Struct):
    """The fields of a request that have grammars, as they come."""

    structured_outputs: msgspec.Raw = msgspec.Raw()
    response_format: msgspec.Raw = msgspec.Raw()


_grammars = msgspec.json.Decoder(_Grammars)


def check_grammars(body: bytes) -> None:
    """Refuses a long body that is no JSON, or has too long a grammar, unparsed."""
    most = grammars.MOST_BYTES
    if not 0 < most < len(body):
        return
    try:
        found = _grammars.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise RefusalError(f"the body is not JSON: {error}") from None
    for name in found.__struct_fields__:
        text = bytes(getattr(found, name))
        if len(text) - text.count(b"\\") > most:  # a schema in a text has many
            raise too_large(name, "is too long", most, grammars.BYTES)


class LimitBodies:
    """Middleware by which reading a body that passes a limit fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets the app read the body of a request as far as the limits."""
        if scope["type"] == "http":
            receive = _limited(receive, dict(scope["headers"]))
        await self._app(scope, receive, send)


def _limited(receive: Receive, headers: dict[bytes, bytes]) -> Receive:
    announced = int(headers.get(b"content-length", 0))
    parts: list[bytes] = []
    is_json = b"json" in headers.get(b"content-type", b"").lower()
    taken = 0

    async def next_part() -> Message:
        nonlocal taken
        message = {} if 0 < MOST_BODY < announced else await receive()
        part = message.get("body", b"")
        taken += len(part)
        if 0 < MOST_BODY < max(taken, announced):
            refusal = too_large("the body", "is too large", MOST_BODY, BODY)
            raise HTTPException(413, str(refusal))
        if is_json and message["type"] == "http.request":
            parts.append(part)
            if not message.get("more_body"):
                try:
                    check_grammars(b"".join(parts))
                except RefusalError as refusal:
                    raise HTTPException(400, str(refusal)) from None
                parts.clear()
        return message

    return next_part
