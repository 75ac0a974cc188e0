"""`vllm-balance trial` as an operator runs it, on the emulated device."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vllm_balance.doctor import serve as serve_module
from vllm_balance.doctor.plan import Plan
from vllm_balance.doctor.serve import look
from vllm_balance.errors import UsageError
from vllm_balance.policy import KEY
from vllm_balance.server_api import Endpoint
from vllm_balance.trial import command
from vllm_balance.trial.load import Load
from vllm_server import Server, free_port

RANKS = 2
DEVICE = {"t0": 0.02, "a": 0.002, "b": 0.0008, "c": 0.02}
SERVE = [
    "--data-parallel-size",
    str(RANKS),
    "--max-num-seqs",
    "4",
    "--max-num-batched-tokens",
    "256",
    "--max-model-len",
    "1024",
    "--additional-config",
    json.dumps({"emulated_device": DEVICE}),
]
LOAD = [
    "--dataset-name",
    "random",
    "--random-input-len",
    "100",
    "--random-output-len",
    "20",
    "--random-range-ratio",
    "0.5",
    "--num-prompts",
    "40",
    "--max-concurrency",
    "8",
]
SECONDS = 400


class Trial:
    """The command, in a folder of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.out = folder / "trial"
        self.port = free_port()
        self.mark = str(self.port)
        """A word of its servers' command lines."""
        self.model = model
        # Its server is `vllm` on PATH.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "VLLM_NO_USAGE_STATS": "1"}
        self.key = "a key"
        self._environment[KEY] = self.key
        # As on most company hosts; nobody listens there.
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            self._environment[name] = "http://127.0.0.1:9"

    def command(self, *more: str, serve: "list[str] | None" = None) -> list[str]:
        words = ["trial", "--minutes", "1", "--stretch", "6", "--disable-tqdm"]
        words += ["--result-dir", str(self.out), *more]
        if serve is None:
            serve = ["--host", "127.0.0.1", "--port", str(self.port), *SERVE]
        if serve:
            words += ["--", "vllm", "serve", str(self.model), *serve]
        return [sys.executable, "-m", "vllm_balance", *words]

    def run(self, *more: str, serve: "list[str] | None" = None):
        return subprocess.run(
            self.command(*more, serve=serve),
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    @contextlib.contextmanager
    def running(
        self, *more: str, serve: "list[str]"
    ) -> "Iterator[subprocess.Popen[str]]":
        with subprocess.Popen(
            self.command(*more, serve=serve),
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # A background job of a shell ignores it, and its children, too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            yield process

    def servers(self) -> list[psutil.Process]:
        """Those of this trial, by their command line."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if self.mark in line and "serve" in line and "trial" not in line:
                    found.append(process)
        return found

    def wait_for(self, name: str, said: str) -> None:
        """Until a file of the trial is there, and says so."""
        deadline = time.monotonic() + SECONDS
        file = self.out / name
        while not file.exists() or said not in file.read_text(errors="replace"):
            assert time.monotonic() < deadline, name
            time.sleep(0.1)


@pytest.fixture
def trial(tmp_path, moe_model) -> Trial:
    return Trial(tmp_path, moe_model)


def error_of(stderr: str) -> str:
    # The end of a server's log may have one.
    stderr = re.sub(r"--- end of .*?\n---\n", "", stderr, flags=re.DOTALL)
    (line,) = [text for text in stderr.splitlines() if text.startswith("error: ")]
    assert "Traceback" not in stderr
    return line


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.timeout(1500)
def test_it_is_stopped_or_loses_its_server_or_reports(trial, certificate):
    """With a server that its command has listen at a socket file, with TLS."""
    trial.mark = str(trial.folder / "socket")
    serve = [*SERVE, "--uds", trial.mark, *certificate]
    with trial.running(*LOAD, serve=serve) as process:
        trial.wait_for("server-1.log", "policy adaptive instead of off")
        for _ in range(2):  # as from a terminal, and from who started it there
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 130
    assert "interrupted: " in said
    assert trial.servers() == []
    (trial.out / "server-1.log").unlink()

    with trial.running(*LOAD, serve=serve) as process:
        trial.wait_for("server-1.log", "policy off instead of adaptive")
        for server in trial.servers():
            assert "VLLM_SERVER_DEV_MODE" not in server.environ(), "it is for everybody"
            server.kill()
        said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 2
    assert "server-1.log: " in error_of(said)
    assert trial.servers() == []

    done = trial.run(*LOAD, "--policy", "off", "off", "adaptive", serve=serve)
    assert done.returncode == 0, done.stderr
    assert f"--uds {trial.mark}: the load goes to 127.0.0.1:" in done.stderr
    report = json.loads((trial.out / "report" / "report.json").read_text())
    assert set(report["policies"]) == {"off", "off#2", "adaptive"}
    assert report["ranks"] == RANKS
    assert report["blocks"] >= 4
    assert report["learned_seconds"]["own"] > 0
    by_request = {}
    for request, *_, digest in json.loads((trial.out / "answers.json").read_text()):
        by_request.setdefault(request, set()).add(digest)
    assert len(by_request) == 40
    assert all(len(digests) == 1 for digests in by_request.values())
    for name in ("report.md", "report.json"):
        text = (trial.out / "report" / name).read_text()
        for private in (str(trial.folder), "127.0.0.1", "models"):
            assert private not in text
    assert "off#2" in done.stdout
    refused = trial.run(*LOAD, serve=serve)
    assert "has something already" in error_of(refused.stderr)


def test_a_command_that_is_none_is_refused(trial):
    words = trial.command(*LOAD, serve=[*SERVE, "--no-such-option"])
    said = "unrecognized arguments: --no-such-option"
    with pytest.raises(UsageError, match=said):
        command.trial(command.parse(words[words.index("trial") + 1 :]))
    assert not trial.out.exists()


@pytest.fixture
def certificate(tmp_path) -> list[str]:
    """Options of TLS, with a certificate that nobody vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, cert = (str(tmp_path / name) for name in ("key.pem", "cert.pem"))
    words = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=a -keyout {key}"
    subprocess.run([*words.split(), "-out", cert], check=True, capture_output=True)
    return ["--ssl-keyfile", key, "--ssl-certfile", cert]


def planned(monkeypatch, model: Path, *serve: str) -> command.ServerPlan:
    """What a trial would start; the doctor's own process is this one."""
    found = look(["serve", str(model), *SERVE, *serve])
    monkeypatch.setattr(serve_module, "plan_of", lambda *_: (Plan(**found), []))
    return command.planned(["vllm", "serve", "m", *serve], ["off", "cap"])


def test_the_load_goes_to_where_the_command_listens(
    monkeypatch, moe_model, certificate, tmp_path
):
    def url(*serve: str) -> str:
        return planned(monkeypatch, moe_model, *serve).url

    assert url() == "http://127.0.0.1:8000"
    assert url("--host", "0.0.0.0", "--port", "7") == "http://127.0.0.1:7"
    assert url("--host", "::1") == "http://[::1]:8000"
    assert url(*certificate) == "https://127.0.0.1:8000"
    (config := tmp_path / "a.yaml").write_text("port: 7\nhost: 127.0.0.2\n")
    assert url("--config", str(config)) == "http://127.0.0.2:7"
    config.write_text(f"uds: {tmp_path}/socket\nport: 0\n")
    plan = planned(monkeypatch, moe_model, "--config", str(config))
    found = look(["serve", str(moe_model), *SERVE, *plan.command[3:]])
    assert (found["uds"], found["host"]) == ("", "127.0.0.1")
    assert plan.url == f"http://127.0.0.1:{found['port']}"


@pytest.mark.parametrize(
    "option",
    [
        "--headless",
        "--grpc",
        "--disable-log-stats",
        "--ssl-cert-reqs 2",
        "--port 0",
    ],
)
def test_a_server_that_cannot_be_asked_is_refused(monkeypatch, moe_model, option):
    with pytest.raises(UsageError, match=option):
        planned(monkeypatch, moe_model, *option.split())


def test_what_a_server_could_not_listen_with_is_refused(moe_model, certificate):
    model, (_, key, _, cert) = str(moe_model), certificate
    for options, said in (
        (["--port", "70000"], "--port 70000: above 65535"),
        (["--ssl-keyfile", key], "--ssl-keyfile: give its --ssl-certfile"),
        (["--ssl-certfile", "/a"], "--ssl-certfile /a: no such file"),
        (["--ssl-certfile", cert, "--ssl-keyfile", cert], "cannot be used"),
        ([*certificate, "--ssl-ca-certs", "/a"], "--ssl-ca-certs /a: no such file"),
    ):
        with pytest.raises(ValueError, match=said):
            look(["serve", model, *SERVE, *options])


def test_a_model_of_another_machine_asks_for_a_tokenizer(
    tmp_path, monkeypatch, moe_model
):
    """Before anything is sent; it is told how, and what helps is taken."""
    deployment = "--deployment=http://127.0.0.1:9"
    words = ["--dataset-name", "random", "--request-rate", "1"]
    words += ["--result-dir", str(tmp_path / "out")]
    monkeypatch.setattr(command, "Deployments", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(Endpoint, "model", lambda _: ("served", "/models/elsewhere"))
    with pytest.raises(
        UsageError, match=r"--tokenizer: none of /models/elsewhere, .*is"
    ):
        command.trial(command.parse([*words, deployment]))
    assert not (tmp_path / "out").exists()
    for more in (["--tokenizer", str(moe_model)], ["--skip-tokenizer-init"]):
        load = Load([*words[:4], *more], tmp_path / "log")
        load.find_tokenizer(Endpoint("http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-warmups", "3"], "--num-warmups: means nothing to a trial"),
        ([], "--request-rate, --max-concurrency: give one of them"),
        (["--max-concurrency", "x"], "--max-concurrency"),
    ],
)
def test_a_load_that_cannot_go_on_is_refused(tmp_path, words, said):
    with pytest.raises(UsageError, match=said):
        Load(["--dataset-name", "random", *words], tmp_path / "log")
    for enough in (["--request-rate", "3"], ["--dataset-name", "timed_trace"]):
        Load(["--dataset-name", "random", *enough], tmp_path / "log")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.timeout(1500)
def test_running_deployments_are_compared_unless_one_is_another(
    trial, tmp_path, monkeypatch
):
    monkeypatch.setenv(KEY, trial.key)
    quiet = ["--host", "127.0.0.1", *SERVE]
    # Not forked: whether there is a key is looked at on import.
    off = Server(tmp_path, trial.model, *SERVE, name="off")
    cap = Server(tmp_path, trial.model, *SERVE, "--data-parallel-balance", "cap")
    with off, cap:
        wrong = [f"--deployment=off={off.url}", f"--deployment=adaptive={cap.url}"]
        done = trial.run(*LOAD, *wrong, serve=[])
        assert "shows the policy cap, not adaptive" in error_of(done.stderr)
        trial.out = tmp_path / "right"
        right = [f"--deployment=off={off.url}", f"--deployment=cap={cap.url}"]
        done = trial.run(*LOAD, *right, serve=[])
        assert done.returncode == 0, done.stderr
        # A port that somebody listens on is refused.
        serve = ["--port", str(off.port), *quiet]
        trial.out = tmp_path / "busy"
        busy = trial.run(*LOAD, serve=serve)
        assert f"--port {off.port}: in use" in error_of(busy.stderr)
        # Nothing succeeds: the prompts are longer than the server takes.
        trial.out = tmp_path / "too long"
        options = [*LOAD, "--random-input-len", "5000", *right]
        failed = trial.run(*options, serve=[])
        assert "a request failed: " in error_of(failed.stderr)
        # One is switched, and has its policy again afterwards.
        trial.out = tmp_path / "switched"
        done = trial.run(
            *LOAD, f"--deployment={cap.url}", "--policy", "off", "align", serve=[]
        )
        assert done.returncode == 0, done.stderr
        assert Endpoint(cap.url).policy() == "cap"
        report = json.loads((trial.out / "report" / "report.json").read_text())
        assert set(report["policies"]) == {"off", "align"}
    report = json.loads((tmp_path / "right" / "report" / "report.json").read_text())
    assert report["exchange_us"] > 0
