"""`vllm.fixes.bodies`: what is too large is refused before it is parsed."""

import asyncio
import json

import pytest
from fastapi import HTTPException
from vllm.fixes import bodies, grammars

JSON = (b"content-type", b"application/json; charset=utf-8")


@pytest.fixture(autouse=True)
def lowered(monkeypatch):
    monkeypatch.setattr(bodies, "MOST_BODY", 10_000)
    monkeypatch.setattr(grammars, "MOST_BYTES", 1_000)


def read(parts, *headers):
    """What an app reads of a body that comes in parts."""
    left = [
        {"type": "http.request", "body": part, "more_body": i + 1 < len(parts)}
        for i, part in enumerate(parts)
    ]

    async def receive():
        return left.pop(0) if left else {"type": "http.disconnect"}

    taken = []

    async def app(scope, receive, send):
        while (message := await receive())["type"] != "http.disconnect":
            taken.append(message["body"])

    asyncio.run(
        bodies.limit_bodies(app)({"type": "http", "headers": headers}, receive, None)
    )
    return b"".join(taken)


@pytest.mark.parametrize("headers", [(), (JSON,), ((b"content-length", b"9000"), JSON)])
def test_a_body_within_the_limits_is_read_as_it_comes(headers):
    body = json.dumps({"prompt": "a" * 8_900}).encode()
    assert read([body], *headers) == body
    assert read([body[:99], body[99:], b""], *headers) == body
    assert read([b""], *headers) == b""


@pytest.mark.parametrize(
    ("parts", "headers"),
    [
        ([b"a" * 10_001], ()),
        ([b"a" * 6_000, b"a" * 6_000, b""], ()),
        ([b"a"], [(b"content-length", b"10001")]),
    ],
)
def test_a_body_of_too_many_bytes_is_refused(parts, headers, monkeypatch):
    with pytest.raises(HTTPException, match=r"10000.*MAX_REQUEST_BODY_SIZE") as refusal:
        read(parts, *headers)
    assert refusal.value.status_code == 413
    monkeypatch.setattr(bodies, "MOST_BODY", 0)
    assert read(parts, *headers) == b"".join(parts)


@pytest.mark.parametrize("field", ["structured_outputs", "response_format"])
def test_a_body_with_too_long_a_grammar_is_refused_unparsed(field):
    body = json.dumps({"prompt": "a", field: {"json": ["b"] * 1_000}}).encode()
    with pytest.raises(HTTPException, match=f"{field}.*GRAMMAR_BYTES") as refusal:
        read([body[:4_000], body[4_000:], b""], JSON)
    assert refusal.value.status_code == 400
    assert read([body]) == body, "not JSON, so that no route parses it"


def test_a_schema_in_a_text_is_not_longer_for_its_quotes():
    fields = {"structured_outputs": {"json": json.dumps(["b"] * 190)}}
    body = json.dumps({"prompt": "a" * 1_000} | fields).encode()
    assert len(json.dumps(fields)) > 1_000
    assert read([body], JSON) == body


def test_a_long_body_that_is_no_json_is_refused():
    with pytest.raises(HTTPException, match="is not JSON"):
        read([b'{"prompt": "' + b"a" * 5_000], JSON)
    assert read([b'{"prompt": '], JSON) == b'{"prompt": ', "left to the parser"


def test_what_is_no_request_passes():
    called = []

    async def app(*arguments):
        called.append(arguments)

    asyncio.run(bodies.limit_bodies(app)({"type": "websocket"}, len, print))
    assert called == [({"type": "websocket"}, len, print)]
