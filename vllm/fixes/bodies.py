# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Refuses bodies of requests by their bytes, before anything parses them."""

import msgspec
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from vllm.fixes import grammars
from vllm.fixes.limits import limit, too_large

BODY = "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
MOST_BODY = limit(BODY, 32 << 20)
"""Upstream's name and limit, of its front-end in Rust."""


def check_grammars(body: bytes) -> None:
    """Refuses a long body that is no JSON, or has too long a grammar, unparsed."""
    most = grammars.MOST_BYTES
    if not 0 < most < len(body):
        return
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    for name in ("structured_outputs", "response_format"):
        text = bytes(found.get(name, b""))
        if len(text) - text.count(b"\\") > most:  # a schema in a text has many
            refusal = too_large(name, "is too long", most, grammars.BYTES)
            raise HTTPException(400, str(refusal))


def limit_bodies(app: ASGIApp) -> ASGIApp:
    """Middleware by which reading a body that passes a limit fails."""

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        is_json = b"json" in headers.get(b"content-type", b"").lower()
        announced, taken = int(headers.get(b"content-length", 0)), 0
        parts: list[bytes] = []

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
                    check_grammars(b"".join(parts))
                    parts.clear()
            return message

        await app(scope, next_part if scope["type"] == "http" else receive, send)

    return limited
