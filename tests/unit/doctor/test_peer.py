"""Two doctors on one machine, over loopback: what they compare, who else calls."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from doctor_roots import FakeMachine
from vllm_balance.doctor.peer import MOST_BYTES, PORT, PeerError, _split, compare

SAID = "said"
"""The file in which the listening doctor's lines are."""
PLAN = {"policy": "adaptive", "ttft": None, "ranks": 4, "npus_per_rank": 4}
CARD = {"host": "head", "same": {"torch": "2.10.0"}, "plan": PLAN, "time": 1000.0}


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def address(machine: FakeMachine, request: pytest.FixtureRequest) -> Iterator[str]:
    command = machine.command("--listen", getattr(request, "param", "127.0.0.1:0"))
    with (
        (machine.folder / SAID).open("w") as said,
        subprocess.Popen(
            command,
            env=machine.environ,
            cwd=machine.folder,
            stdout=said,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr
        found = re.search(r"listening on (\S+);", process.stderr.readline())
        assert found
        yield found[1]
        process.kill()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "[::1]:0", "[::]:0", "localhost:0"], indirect=True
)
def test_the_same_host_differs_in_nothing(machine, address):
    lines = machine.doctor("--peer", address)[1]
    assert [x["state"] for x in lines] == ["ok", "ok", "ok", "unknown"]
    assert lines[1]["found"] == "the same 11"


def test_another_torch_and_another_wheel_are_named(machine, address):
    machine.remove("torch")
    machine.install("torch", "2.9.0")
    record = machine.packages / "vllm_balance/build.json"
    record.write_text(record.read_text() + "\n")
    status, lines = machine.doctor("--peer", address)
    bad = {x["what"].partition(" on ")[0]: x for x in lines if x["state"] == "bad"}
    assert bad.keys() == {"torch", "wheel's record"}
    found = bad["torch"]["found"], bad["torch"]["expected"]
    assert (status, found) == (1, ("2.10.0+cpu", "2.9.0, as here"))


def test_nobody_there(machine):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    status, (line,) = machine.doctor("--peer", address)
    assert (status, "refused" in line["found"]) == (1, True)
    assert "vllm-balance doctor --listen" in line["do"]


TIME = b'{"host": "a", "same": {}, "plan": null, "time": %s}\n'
STRANGE = [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"[" * 9999 + b"\n"]
STRANGE += [TIME % b"NaN", TIME % (b"9" * 400), TIME.replace(b"null", b"[]") % b"1"]


@pytest.mark.parametrize("said", STRANGE)
def test_a_stranger_does_not_end_it(machine, address, said):
    with socket.create_connection(_split(address)) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    assert machine.doctor("--peer", address)[0] == 0


def test_what_a_stranger_sends_without_end_is_not_kept(machine, address):
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port))) as stranger,
        pytest.raises(ConnectionError),
    ):
        stranger.sendall(b"x" * (1000 * MOST_BYTES))
    machine.doctor("--peer", address)  # its turn comes after the stranger's line
    found = re.search(r"(\d+) bytes came", (machine.folder / SAID).read_text())
    assert found
    assert int(found[1]) <= 2 * MOST_BYTES


def test_every_form_of_an_address_is_read():
    forms = {
        **{
            "head": ("head", PORT),
            "head:1": ("head", 1),
            "10.0.0.1:2": ("10.0.0.1", 2),
        },
        **{"fd00::1": ("fd00::1", PORT), "[::1]": ("::1", PORT), "[::]:3": ("::", 3)},
        **{"fe80::1%eth0": ("fe80::1%eth0", PORT), "::1:4": ("::1:4", PORT)},
    }
    assert {form: _split(form) for form in forms} == forms
    for wrong in ("", "head:", "head:70000", "[::1", "::1]:5", "[head]:6", "a:b:7"):
        with pytest.raises(PeerError, match="expected HOST"):
            _split(wrong)


@pytest.mark.parametrize(
    ("option", "address", "said"),
    [
        ("--peer", "head:ssh", "expected HOST, HOST:PORT or"),
        ("--listen", "[fe80::1%lo]:0", "expected to listen here: [Errno 99] Cannot"),
        ("--listen", "a..b", "expected to listen here: encoding with"),
    ],
)
def test_an_address_that_cannot_be_is_an_error(machine, option, address, said):
    done = subprocess.run(
        machine.command(option, address),
        env=machine.environ,
        cwd=machine.folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {address}: {said}")


@pytest.mark.parametrize("seconds", [-30.0, 30.0])
def test_a_clock_that_is_wrong_is_named(seconds):
    other = {**CARD, "time": 1000.0 + seconds}
    lines = list(compare(CARD, other, 0.5, 1000.0))
    (line,) = [x for x in lines if x.state != "ok"]
    assert (line.what, line.found) == ("clock on head", f"{seconds:+.1f} s")
    assert all(x.state == "ok" for x in compare(CARD, other, 30.0, 1000.0))


def test_another_policy_is_named():
    other = json.loads(json.dumps(CARD))
    other["plan"]["policy"] = "cap"
    (line,) = [x for x in compare(CARD, other, 0.0, 1000.0) if x.state != "ok"]
    assert (line.what, line.found) == ("policy on head", "cap")
    assert line.expected == "adaptive, as here"
