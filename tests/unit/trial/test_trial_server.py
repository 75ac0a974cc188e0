"""The server of a turn is waited for, watched, and leaves no process behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from small_server import answering
from vllm_balance import server_api as endpoint_module
from vllm_balance.cli import main
from vllm_balance.errors import UsageError
from vllm_balance.policy import KEY
from vllm_balance.server_api import Endpoint, OtherPolicyError, go_past_proxies
from vllm_balance.simulator.cost_from import cost_of
from vllm_balance.trial import server as server_module
from vllm_balance.trial.server import Server, refuse_port_in_use
from vllm_balance.trial.serving import OwnServer, ServerPlan
from vllm_server import free_port, is_alive

# Its child is a process of another session, as what a careless launcher starts.
PROGRAM = """
import http.server, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
)
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


port = pytest.fixture(free_port)


def server(folder, program, *arguments):
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return Server(words, folder / "server.log", os.environ)


def test_all_its_processes_are_ended_and_signals_work_again(
    tmp_path, port, capfd, monkeypatch
):
    monkeypatch.setattr(server_module, "STOP_S", 3)  # the child is not asked
    endpoint = Endpoint(f"http://127.0.0.1:{port}")
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        server(tmp_path, PROGRAM, port) as started,
    ):
        started.start()
        started.wait_until_ready(endpoint, 60)
        with pytest.raises(UsageError, match=f"--port {port}: in use"):
            refuse_port_in_use(endpoint.url)
        started.refuse_ended()
        child = int((tmp_path / "server.log").read_text().split()[1])
        assert is_alive(child)
        _ = 1 / 0
    assert not is_alive(child)
    assert endpoint.problem().endswith("no answer (Connection refused)")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert f"child {child}" in capfd.readouterr().err, "the end of its log"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('no such model')", "ended with 1 after .* before it was"),
        ("import time; time.sleep(600)", "not ready in 1 s.*Connection refused"),
    ],
)
def test_a_server_that_does_not_come_up_shows_why(tmp_path, port, program, said, capfd):
    endpoint = Endpoint(f"http://127.0.0.1:{port}")
    with (  # noqa: PT012
        pytest.raises(UsageError, match=said),
        server(tmp_path, program) as started,
    ):
        started.start()
        started.wait_until_ready(endpoint, 1 if "sleep" in program else 60)
    assert ("no such model" in capfd.readouterr().err) == ("SystemExit" in program)


def test_one_that_is_interrupted_while_it_starts_is_not_left_behind(
    tmp_path, port, monkeypatch
):
    started, popen = [], psutil.Popen

    def slow_start(*arguments, **options):
        started.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(psutil, "Popen", slow_start)
    with pytest.raises(KeyboardInterrupt), server(tmp_path, PROGRAM, port) as one:
        one.start()
    assert not is_alive(started[0].pid)


ENDING = """
import http.server, os, sys, threading
print("idle for", os.environ["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"], flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "a"}]}')
    def do_POST(self):
        threading.Timer(0.4, os._exit, (3,)).start()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("idle", [None, "7"])
def test_one_whose_connections_close_before_it_ends_is_named(
    tmp_path, port, idle, monkeypatch
):
    if idle is not None:
        monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", idle)
    endpoint = Endpoint(f"http://127.0.0.1:{port}")
    plan = ServerPlan([sys.executable, "-c", ENDING, str(port)], endpoint.url, "m")
    log = tmp_path / "server-1.log"

    said = re.escape(f"{log}: the server ended with 3 during the trial")
    with (
        OwnServer(plan, endpoint, tmp_path, 60, restarts=True) as started,
        pytest.raises(UsageError, match=said),
        started.serve("adaptive") as ready,
    ):
        ready.ask()
    assert log.read_text().startswith(f"idle for {idle or 60}\n")


METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_running{engine="1"} 0.0
"""
PAGE = "<!DOCTYPE html>\n<p>Not found"
MODELS = '{"data": [{"id": "a", "root": "b"}]}'
GATE = """# TYPE vllm:dp_balance_decisions counter
vllm:dp_balance_decisions_total{engine="0",policy="cap",reason="open"} 3.0
# TYPE vllm:dp_balance_exchange_seconds histogram
vllm:dp_balance_exchange_seconds_sum{engine="0"} 3.0
vllm:dp_balance_exchange_seconds_count{engine="0"} 1000.0
vllm:dp_balance_exchange_seconds_sum{engine="1"} 1.0
vllm:dp_balance_exchange_seconds_count{engine="1"} 1000.0
vllm:dp_balance_exchange_seconds_count{engine="2"} 0.0
"""


@pytest.mark.parametrize(
    ("text", "policy", "said"),
    [
        (METRICS, "off", ""),
        (METRICS + GATE, "cap", ""),
        (METRICS + GATE, "adaptive", "shows the policy cap, not adaptive"),
        (METRICS, "cap", "shows the policy off, not cap"),
        (PAGE, "off", "serve without --disable-log-stats"),
    ],
)
def test_a_deployment_with_another_policy_is_refused(text, policy, said):
    def page(path: str, _: str) -> str:
        return text if "metrics" in path or text == PAGE else MODELS

    with answering(page) as url:
        endpoint = Endpoint(url)
        if text == PAGE:
            with pytest.raises(UsageError, match="names no model; give the address"):
                endpoint.model()
        else:
            assert endpoint.model() == ("a", "b")
        if said:
            with pytest.raises(UsageError, match=said):
                endpoint.figures(policy)
        else:
            exchange_us = None if policy == "off" else pytest.approx(1000)
            assert endpoint.figures(policy) == (2, exchange_us, {})


def test_only_what_is_needed_is_parsed(monkeypatch):
    """The rest of what 64 ranks say took a second of the cores that send the load."""
    texts = []
    monkeypatch.setattr(
        endpoint_module,
        "text_string_to_metric_families",
        lambda text: texts.append(text) or text_string_to_metric_families(text),
    )
    other = 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="1"} 0.0\n'
    with answering(lambda *_: METRICS + other + GATE) as url:
        assert Endpoint(url).figures("cap") == (2, pytest.approx(1000), {})
    assert len(texts[0].splitlines()) == 8


def test_a_server_that_was_switched_by_another_meanwhile_is_refused(monkeypatch):
    monkeypatch.setenv(KEY, "ours")
    said = {"policy": "cap", "wanted": "cap", "ticket": 1, "running": False}

    def page(path: str, given: str) -> str:
        if path == "/v1/models":
            return MODELS
        if path == "/balance_policy" and given.startswith("{"):
            said["policy"] = said["wanted"] = json.loads(given)["policy"]
        return METRICS + GATE if path == "/metrics" else json.dumps(said)

    with answering(page) as url:
        endpoint = Endpoint(url)
        endpoint.switch("align")  # though /metrics knows of decisions of cap alone
        assert endpoint.figures("align").ranks == 2
        said["policy"] = "cap"
        with pytest.raises(OtherPolicyError, match="the policy cap, not align"):
            endpoint.figures("align")


def test_a_key_is_sent_without_its_newline_or_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "clients\n")
    monkeypatch.setenv(KEY, "operators\r\n")
    sent = []

    def page(_: str, given: str) -> str:
        sent.append(given)
        return '{"data": [], "policy": "cap", "wanted": "cap", "running": true}'

    with answering(page) as url:
        endpoint = Endpoint(url)
        assert endpoint.problem() == ""
        assert endpoint.policy() == "cap"
        assert sent == ["Bearer clients", "Bearer operators"]
        assert os.environ["OPENAI_API_KEY"] == "clients", "vllm bench serve sends it"
        for bad in ("hunter\n2", "鍵"):
            monkeypatch.setenv(KEY, bad)
            with pytest.raises(UsageError, match=f"^{KEY}: expected one line") as one:
                endpoint.policy()
            monkeypatch.setenv("OPENAI_API_KEY", bad)
            with pytest.raises(UsageError, match="OPENAI_API_KEY: exp") as other:
                Endpoint(url)
            monkeypatch.delenv("OPENAI_API_KEY")
            with pytest.raises(UsageError, match="--header 'X': give one") as third:
                Endpoint(url, [f"X={bad}"])
            for error in (one, other, third):
                assert bad not in str(error.value)
    assert len(sent) == 2


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, r"answers with status 401 \(Unauthorized\); set OPENAI_API_KEY"),
        (503, r"status 503 \(Service Unavailable\); it is not ready"),
    ],
)
def test_a_refusal_is_told_as_it_was(status, said):
    with answering(lambda *_: "no", status) as url:
        endpoint = Endpoint(url)
        for ask in (endpoint.figures, lambda: cost_of(url, 4096)):
            with pytest.raises(UsageError, match=f"{url}/metrics: .*{said}") as caught:
                ask()
            assert "log-stats" not in str(caught.value)
        if status == 401:  # waiting would not help
            with pytest.raises(UsageError, match=said):
                endpoint.problem()
        else:
            assert f"status {status}" in endpoint.problem()


def test_a_server_that_drafts_for_greedy_requests_alone_can_be_asked():
    """What it says against others is told."""
    asked = []

    def page(path: str, given: str) -> str:
        if path == "/v1/models":
            return MODELS
        asked.append(json.loads(given))
        return "{}"

    with answering(page) as url:
        Endpoint(url).ask()
    (request,) = asked
    assert request["model"] == "a"
    assert request["temperature"] == 0
    error = json.dumps({"error": {"message": "no temperature above 0 with drafts"}})
    said = r"status 400 \(Bad Request\), 'no temperature above 0 with drafts'"
    with answering(lambda *_: error, 400) as url, pytest.raises(UsageError, match=said):
        Endpoint(url).figures()


def test_who_does_not_answer_is_told_with_the_reason(port, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    for host, said in (
        ("127.0.0.1", r"no answer \(Connection refused\)"),
        ("no.such.host.invalid", r"no answer \(.*(name|Name|resolution)"),
    ):
        with pytest.raises(UsageError, match=said):
            Endpoint(f"http://{host}:{port}").figures()
    for url in ("ftp://h:1", "h:1", "http://[::1", "http://:1", "http://h:70000"):
        with pytest.raises(UsageError, match="is no address of a server; give http"):
            Endpoint(url)
    with answering(lambda *_: METRICS) as url:
        secure = Endpoint(url.replace("http", "https"))
        with pytest.raises(UsageError, match=r"/metrics: no answer \("):
            secure.figures()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_one_variable_names_a_private_authority(tmp_path, monkeypatch, capsys):
    """For the trial, its load, and the command that switches."""
    both, cert = tmp_path / "both.pem", tmp_path / "cert.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=a -days 2 -addext "
    words += f"subjectAltName=IP:127.0.0.1 -keyout {both} -out {cert}"
    subprocess.run(words.split(), check=True, capture_output=True)
    both.write_text(both.read_text() + cert.read_text())
    state = json.dumps({"policy": "off", "wanted": "off", "running": True})
    monkeypatch.setenv("BALANCE_OPERATOR_KEY", "ours")
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with answering(lambda *_: state, cert=str(both)) as url:
        with pytest.raises(UsageError, match=r"authority in SSL_CERT_FILE, or add --i"):
            Endpoint(url).figures()
        assert main(["policy", url]) == 2
        assert "name its authority in SSL_CERT_FILE" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert Endpoint(url).policy() == "off"
        assert main(["policy", url]) == 0
        assert Endpoint(url, insecure=True).policy() == "off"


@pytest.mark.parametrize("listed", ["", "example.com", "*"])
def test_our_server_is_asked_past_the_users_proxy(listed, tmp_path, monkeypatch):
    """Their .netrc, too, is not for it."""
    (netrc := tmp_path / "netrc").write_text("default login me password hunter2")
    with (
        answering(lambda *_: "blocked", 403) as proxy,
        answering(lambda _, given: json.dumps({"data": [{"id": given}]})) as url,
    ):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.replace("//", "//me:hunter2@"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, listed)
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("OPENAI_API_KEY", "ours")
        endpoint = Endpoint(url)
        if listed != "*":  # as a deployment it may be behind the proxy
            address = proxy.removeprefix("http://")
            said = f"through the proxy {address} of the .* add 127.0.0.1 to NO_PROXY"
            with pytest.raises(UsageError, match=said) as caught:
                endpoint.model()
            assert "hunter2" not in str(caught.value)
        go_past_proxies(url)
        assert endpoint.model()[0] == "Bearer ours"
        assert endpoint.proxy_hint == ""
