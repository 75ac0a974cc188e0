"""`vllm-balance policy` where no server of ours answers as it should."""

import json

import pytest

from small_server import answering
from vllm_balance import policy
from vllm_balance.cli import main

KEY = "secret"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(policy.KEY, KEY)


def refusal(capsys, *words):
    assert main(["policy", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith((f"error: {words[0]}", "error: BALANCE_"))
    return error


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (404, "{}", f"start the server, of this wheel, with {policy.KEY} in"),
        (401, '{"error": {"message": "no"}}', "(Unauthorized), 'no'; set BALANCE_OPER"),
        (200, "[]", "status 200 (OK)"),
        (500, "\udcff", "status 500 (Internal"),
    ],
)
def test_each_wrong_answer_is_one_sentence(capsys, status, text, said):
    with answering(lambda *_: text, status) as url:
        assert said in refusal(capsys, url, *["off"] * (status == 404))


def test_no_redirect_gets_the_key(capsys):
    seen = []
    elsewhere = {"Location": "http://127.0.0.1:9/"}
    with answering(lambda _, key: seen.append(key) or "", 307, elsewhere) as url:
        assert "status 307" in refusal(capsys, url)
    assert seen == [f"Bearer {KEY}"]


def test_the_command_waits_until_the_ranks_have_taken_it(capsys):
    answers = [("cap", "cap"), ("cap", "off"), ("cap", "off"), ("off", "off")]

    def page(*_):
        had, wanted = answers.pop(0)
        return json.dumps({"policy": had, "wanted": wanted, "running": True})

    with answering(page) as url:
        assert main(["policy", url, "off"]) == 0
    assert capsys.readouterr().out == "off (before: cap)\n"
    assert answers == []


def test_a_server_that_is_not_there_and_a_missing_key(capsys, monkeypatch):
    assert "no answer (" in refusal(capsys, "http://127.0.0.1:9")
    monkeypatch.delenv(policy.KEY)
    assert f"set {policy.KEY} to the key" in refusal(capsys, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("off", "off is wanted, and was not taken in 0.3 s"),
        ("align", "another operator has asked for align meanwhile"),
    ],
)
def test_a_switch_that_does_not_come_is_told(capsys, wanted, said):
    state = {"policy": "cap", "wanted": wanted, "running": True, "ticket": 4}
    with answering(lambda *_: json.dumps(state)) as url:
        assert said in refusal(capsys, url, "off", "--timeout", "0.3")
