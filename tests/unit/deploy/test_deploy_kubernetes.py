"""The manifests are what the schemas of Kubernetes and of its operators allow."""

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

import crd_schemas

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VARIANTS = ("leaderworkerset", "statefulset")
OLDEST = "1.29"
"""Older ones do not tell a pod its index in a StatefulSet."""


@functools.cache
def custom_schemas():
    return crd_schemas.schemas("LeaderWorkerSet", "PodMonitor", "PrometheusRule")


def documents():
    """Every manifest that is not kustomize's own."""
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                name = f"{document['kind']} {document['metadata']['name']}"
                yield f"{path.parent.name}: {name}", document


def check(document):
    """Raise ValidationError if a schema forbids the document."""
    kind = document["kind"]
    if kind in custom_schemas():
        jsonschema.validate(document, custom_schemas()[kind])
        if kind == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            for name in ("leaderTemplate", "workerTemplate"):
                check({"apiVersion": "v1", "kind": "Pod"} | template[name])
    else:
        for version in (OLDEST, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, version, strict=True)


DOCUMENTS = dict(documents())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schemas_allow_it(name):
    check(DOCUMENTS[name])


def pods(document):
    spec = document["spec"]
    if "leaderWorkerTemplate" in spec:
        both = spec["leaderWorkerTemplate"]
        return [both["leaderTemplate"], both["workerTemplate"]]
    return [spec["template"]]


def container(pod):
    """Its one container, and the variables of that."""
    (one,) = pod["spec"]["containers"]
    return one, {e["name"]: e.get("value") for e in one["env"]}


def workload(variant):
    kinds = {"leaderworkerset": "LeaderWorkerSet", "statefulset": "StatefulSet"}
    return DOCUMENTS[f"{variant}: {kinds[variant]} vllm"]


each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_pod = pytest.mark.parametrize(
    "pod", [pod for variant in VARIANTS for pod in pods(workload(variant))]
)


@each_variant
def test_what_selects_pods_selects_these(variant):
    templates = pods(workload(variant))
    selectors = [
        document["spec"]["selector"]
        for name, document in DOCUMENTS.items()
        if document["kind"] == "Service" and name.startswith(variant)
    ]
    selectors += [
        DOCUMENTS["monitoring: PodMonitor vllm"]["spec"]["selector"],
        DOCUMENTS["common: NetworkPolicy vllm"]["spec"]["podSelector"],
        DOCUMENTS["common: PodDisruptionBudget vllm"]["spec"]["selector"],
    ]
    given_by_lws = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    labels = templates[0]["metadata"]["labels"] | given_by_lws
    for selector in selectors:
        assert selector.get("matchLabels", selector).items() <= labels.items()


@each_pod
def test_npus_are_requested_as_the_device_plugin_wants_it(pod):
    """Request and limit are equal, and enough for the ranks of the pod."""
    spec, given = container(pod)
    (size,) = re.findall(r"--tensor-parallel-size (\d+)", given["MODEL_OPTIONS"])
    for kind in ("requests", "limits"):
        npus = spec["resources"][kind]["huawei.com/Ascend910"]
        assert int(npus) == int(given["RANKS_PER_HOST"]) * int(size)


@each_variant
def test_no_service_is_taken_for_something_else(variant):
    """Its variables for vLLM's (VLLM_PORT), itself for the one of the controller."""
    for pod in pods(workload(variant)):
        assert pod["spec"]["enableServiceLinks"] is False
    name = workload(variant)["metadata"]["name"]
    assert f"{variant}: Service {name}" not in DOCUMENTS
    assert f"{variant}: Service {name}-api" in DOCUMENTS


def test_the_pods_of_a_stateful_set_can_come_up_together():
    document = workload("statefulset")
    _, given = container(document["spec"]["template"])
    assert given["HOSTS"] == str(document["spec"]["replicas"])
    assert document["spec"]["podManagementPolicy"] == "Parallel"
    headless = DOCUMENTS["statefulset: Service vllm-hosts"]
    assert headless["spec"]["publishNotReadyAddresses"]
    assert headless["metadata"]["name"] == document["spec"]["serviceName"]


def test_kustomizations_name_files_that_exist():
    for path in DEPLOY.rglob("kustomization.yaml"):
        content = yaml.safe_load(path.read_text())
        files = list(content.get("resources", []))
        for generator in content.get("configMapGenerator", []):
            files += generator["files"]
        assert files
        for file in files:
            assert (path.parent / file).exists(), f"{path}: {file}"


@each_pod
def test_a_pod_may_do_no_more_than_it_must(pod):
    """What the Restricted standard asks for, and no token of the cluster."""
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)[0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


@each_pod
def test_the_grace_period_is_what_a_stop_needs(pod):
    spec, _ = container(pod)
    (drain,) = re.findall(r"--shutdown-timeout (\d+)", spec["args"][-1])
    (wait,) = spec["lifecycle"]["preStop"]["exec"]["command"][1:]
    needed = int(wait) + int(drain) + 10  # docs/operations.md
    assert pod["spec"]["terminationGracePeriodSeconds"] >= needed


@each_variant
def test_the_server_waits_as_long_as_the_probe(variant):
    spec, given = container(pods(workload(variant))[0])
    probe = spec["startupProbe"]
    allowed = probe["periodSeconds"] * probe["failureThreshold"]
    assert int(given["VLLM_ENGINE_READY_TIMEOUT_S"]) == allowed


@each_pod
def test_the_doctor_sees_what_the_server_will_have(pod):
    """A device plugin gives the server the NPUs that the init container had."""
    server, _ = container(pod)
    (doctor,) = pod["spec"]["initContainers"]
    assert doctor["args"] == ["vllm-balance", "doctor"]
    for name in ("image", "env", "resources", "securityContext"):
        assert doctor[name] == server[name]
    assert server["volumeMounts"] == doctor["volumeMounts"]


NEEDS_KUBECTL = pytest.mark.skipif(
    not shutil.which("kubectl"), reason="no kubectl: install Kubernetes' client"
)


def built(folder):
    """What kustomize makes of a folder; every manifest is one that is allowed."""
    command = ["kubectl", "kustomize", str(KUBERNETES / folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for document in yaml.safe_load_all(output):
        check(document)
        found[document["kind"], document["metadata"]["name"]] = document
    return found


@NEEDS_KUBECTL
def test_two_groups_in_one_namespace_do_not_mix():
    first, second = built("statefulset"), built("second-group")
    assert not first.keys() & second.keys()
    (one, two) = (
        next(d for (kind, _), d in group.items() if kind == "StatefulSet")
        for group in (first, second)
    )
    assert two["spec"]["serviceName"] == "second-vllm-hosts"
    for own, other in ((first, two), (second, one)):
        labels = other["spec"]["template"]["metadata"]["labels"]
        for (kind, _), document in own.items():
            spec = document.get("spec", {})
            selector = spec.get("podSelector", spec.get("selector"))
            if selector:
                selector = selector.get("matchLabels", selector)
                assert not selector.items() <= labels.items(), kind
    clients = second["NetworkPolicy", "second-vllm"]["spec"]["ingress"][0]["from"]
    assert "matchLabels" not in clients[0]["podSelector"]


@each_pod
def test_a_probe_waits_for_an_answer_that_a_busy_server_needs(pod):
    """One second, the default, is less than `/health` may take under load."""
    server, _ = container(pod)
    probes = [server[name] for name in server if name.endswith("Probe")]
    assert all(probe.get("timeoutSeconds", 1) >= 5 for probe in probes)


@NEEDS_KUBECTL
def test_prefill_and_decode_hosts_find_each_other():
    """By the names that the router has, and through the policies."""
    made = built("prefill-decode")
    (router,) = made["Deployment", "router"]["spec"]["template"]["spec"]["containers"]
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        group = made["StatefulSet", f"{role}-vllm"]
        host = f"{role}-vllm-0.{group['spec']['serviceName']}"
        assert f"--{role}=http://{host}:8000" in router["args"]
        assert ("Service", group["spec"]["serviceName"]) in made
        server, given = container(group["spec"]["template"])
        assert f"--kv-transfer-config.kv_role {kv_role}" in given["MODEL_OPTIONS"]
        ranks = int(given["HOSTS"]) * int(given["RANKS_PER_HOST"])
        assert given["HOSTS"] == str(group["spec"]["replicas"])
        (size,) = re.findall(rf"{role}\.dp_size (\d+)", given["MODEL_OPTIONS"])
        assert int(size) == ranks
        assert server["resources"]["limits"]["huawei.com/Ascend910"] == "8"
    policy = made["NetworkPolicy", "prefill-decode"]["spec"]
    (wanted,) = policy["podSelector"]["matchExpressions"]
    assert wanted["values"] == ["prefill", "decode"]
    assert policy["ingress"][0]["from"][0]["podSelector"] == policy["podSelector"]
    labels = made["Deployment", "router"]["spec"]["template"]["metadata"]["labels"]
    (asks,) = policy["ingress"][1]["from"]
    assert asks["podSelector"]["matchLabels"].items() <= labels.items()


SCRIPT = (DEPLOY.parent / "docker/healthcheck.py").read_text()
TIMEOUT = re.compile(r"^TIMEOUT_S = (\d+)$", re.M)


def alive(*urls, seconds=120, **variables):
    """The exit status of the probe, and what it says; past a proxy that is none."""
    proxy = os.environ | {"http_proxy": "http://127.0.0.1:9"} | variables
    script = TIMEOUT.sub(f"TIMEOUT_S = {seconds}", SCRIPT)
    command = [sys.executable, "-c", script, *urls]
    done = subprocess.run(command, env=proxy, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


class Pod(BaseHTTPRequestHandler):
    """Answers once as many are asked as the barrier wants."""

    status, together = 200, threading.Barrier(1)

    def do_GET(self):
        self.together.wait(120)
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        """Not in the test's output."""


@pytest.fixture
def pods_asked():
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Pod) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}/health" for server in servers]
    Pod.status, Pod.together = 200, threading.Barrier(1)
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_group_is_alive_if_every_pod_is_healthy(pods_asked):
    nobody = "http://127.0.0.1:9"
    assert alive(*pods_asked) == (0, "")
    status, words = alive(*pods_asked, nobody)
    assert (status, words.startswith(f"{nobody}: expected the server")) == (1, True)
    Pod.status = 503
    status, words = alive(pods_asked[0])
    assert (status, "503" in words) == (1, True)


def test_slow_pods_are_asked_at_the_same_time(pods_asked):
    """None answers before all three are asked."""
    Pod.together = threading.Barrier(3)
    assert alive(*pods_asked) == (0, "")


def test_the_probe_ends_in_time_whoever_does_not_answer():
    """Also where bytes come one by one, so that no single wait is long."""
    spec, given = container(workload("statefulset")["spec"]["template"])
    _, asked = spec["livenessProbe"]["exec"]["command"]
    group = {"POD_NAME": "vllm-1", "HOSTS": str(given["HOSTS"])}
    assert alive(asked, **group)[1].startswith("http://vllm-0.vllm-hosts:8000/health: ")
    (seconds,) = TIMEOUT.findall(SCRIPT)
    assert int(seconds) + 2 <= spec["livenessProbe"]["timeoutSeconds"]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                for _ in range(100):
                    connection.sendall(b"H")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        said = f"{url}: expected the server to be well, found no answer in 1 s\n"
        assert alive(url, seconds=1) == (1, said)
