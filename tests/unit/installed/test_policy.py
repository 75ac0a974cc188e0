"""`vllm-balance policy` where no server of ours answers as it should."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from vllm_balance import policy
from vllm_balance.cli import main

KEY = "secret"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(policy.KEY, KEY)


@pytest.fixture
def other():
    """A server whose answer the test chooses, and what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.seen.append(self.headers["Authorization"])
            status, headers, body = server.answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body() if callable(body) else body)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def url(server):
    return f"http://127.0.0.1:{server.server_port}"


def refusal(capsys, *words):
    assert main(["policy", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith((f"error: {words[0]}", "error: BALANCE_"))
    return error


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {}, b"{}"), f"start the server, of this wheel, with {policy.KEY} in"),
        (
            (401, {}, b'{"error": {"message": "no"}}'),
            "status 401 (Unauthorized), 'no'; set BALANCE_OPERATOR_KEY",
        ),
        ((200, {}, b"hello"), "status 200 (OK)"),
        ((200, {}, b"[]"), "status 200 (OK)"),
        ((500, {}, b"\xff"), "status 500 (Internal"),
    ],
)
def test_each_wrong_answer_is_one_sentence(other, capsys, answer, said):
    other.answer = answer
    assert said in refusal(capsys, url(other))
    assert said in refusal(capsys, url(other), "off")


def test_no_redirect_gets_the_key(other, capsys):
    other.answer = (307, {"Location": "http://127.0.0.1:9/"}, b"")
    assert "status 307" in refusal(capsys, url(other))
    assert other.seen == [f"Bearer {KEY}"]


def test_the_command_waits_until_the_ranks_have_taken_it(other, capsys):
    answers = [("cap", "cap"), ("cap", "off"), ("cap", "off"), ("off", "off")]

    def page():
        had, wanted = answers.pop(0)
        return json.dumps({"policy": had, "wanted": wanted, "running": True}).encode()

    other.answer = (200, {}, page)
    assert main(["policy", url(other), "off"]) == 0
    assert capsys.readouterr().out == "off (before: cap)\n"
    assert answers == []


def test_a_server_that_is_not_there_and_a_missing_key(capsys, monkeypatch):
    assert "no answer (" in refusal(capsys, "http://127.0.0.1:9")
    monkeypatch.delenv(policy.KEY)
    assert f"set {policy.KEY} to the key" in refusal(capsys, "http://127.0.0.1:9")


def test_a_switch_that_does_not_come_is_told(other, capsys):
    other.answer = (
        200,
        {},
        b'{"policy": "cap", "wanted": "off", "running": true, "wish": 4}',
    )
    said = refusal(capsys, url(other), "off", "--timeout", "0.3")
    assert "off is wanted, and was not taken in 0.3 s" in said


def test_another_operator_is_told(other, capsys):
    other.answer = (
        200,
        {},
        b'{"policy": "cap", "wanted": "align", "running": true, "wish": 4}',
    )
    said = refusal(capsys, url(other), "off")
    assert "another operator has asked for align meanwhile" in said
