"""Manifests, units, alerts and dashboard, by the tools that read them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
OLDEST = "1.29"
"""Older ones do not tell a pod its index in a StatefulSet."""
FOLDERS = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def needs(program, package):
    missing = f"no {program}: install {package}"
    return pytest.mark.skipif(not shutil.which(program), reason=missing)


def documents():
    """Every manifest that is not kustomize's own."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


def pods(document):
    """The templates of pods that serve."""
    spec = document.get("spec", {})
    both = spec.get("leaderWorkerTemplate", {})
    found = [both.get("leaderTemplate"), both.get("workerTemplate")]
    found += [spec.get("template")] if document["kind"] == "StatefulSet" else []
    return [pod for pod in found if pod]


def check(document):
    """Kubernetes' own kinds, and the pods of others, by Kubernetes' schemas."""
    if re.search(r"(x-k8s|coreos|kustomize)", document["apiVersion"]):
        for pod in pods(document):
            check({"apiVersion": "v1", "kind": "Pod"} | pod)
        return
    for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("document", [*documents()], ids=lambda d: d["kind"])
def test_the_schemas_allow_it(document):
    check(document)


def test_why_a_pod_does_not_start_can_be_read():
    """LeaderWorkerSet (0.9) deletes no pod whose doctor fails, and all say why."""
    served = [document for document in documents() if pods(document)]
    assert len({document["kind"] for document in served}) == 2
    for document in served:
        for pod in pods(document):
            spec = pod["spec"]
            for each in spec["initContainers"] + spec["containers"]:
                assert each["terminationMessagePolicy"] == "FallbackToLogsOnError"
        if template := document["spec"].get("leaderWorkerTemplate"):
            assert template["restartPolicy"] == "RecreateGroupAfterStart"


@needs("kubectl", "Kubernetes' client")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_kustomize_builds_what_the_schemas_allow(folder):
    command = ["kubectl", "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(done.stdout):
        check(document)


@needs("systemd-analyze", "systemd")
def test_systemd_has_nothing_to_complain_about(tmp_path):
    """On a root as docs/deployment.md says how to make it."""
    units = tmp_path / "etc/systemd/system"
    programs = (tmp_path / "usr/local/lib/vllm", tmp_path / "opt/vllm/bin")
    for folder in (units, tmp_path / "etc/vllm", *programs):
        folder.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(unit, units)
    for name in ("sysinit", "basic", "shutdown", "multi-user", "network-online"):
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    shutil.copy(DEPLOY / "systemd/vllm.env", tmp_path / "etc/vllm")
    shutil.copy(DEPLOY / "systemd/with-cann", programs[0])
    (tmp_path / "etc/passwd").write_text("vllm:x:999:999::/:/bin/sh\n")
    names = [unit.name.replace("@", "@2") for unit in UNITS]
    command = ["systemd-analyze", "verify", f"--root={tmp_path}", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


ALERTS = DEPLOY / "kubernetes/monitoring/alerts.yaml"
ALERT_CASES = Path(__file__).with_name("alerts.yaml")
DASHBOARD = DEPLOY / "grafana/dp-balance.json"
METRICS = [
    ROOT / "vllm/v1/metrics/loggers.py",
    *sorted((ROOT / "vllm/v1/core/sched/balance").rglob("*.py")),
]


def test_alerts_and_dashboard_are_over_metrics_that_exist():
    sources = "".join(path.read_text() for path in METRICS)
    for file in (ALERTS, DASHBOARD):
        used = set(re.findall(r"vllm:\w+", file.read_text()))
        assert len(used) > 3
        plain = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used}
        names = {name.removeprefix("vllm:dp_balance_") for name in plain}
        assert {name for name in names if f'"{name}"' not in sources} == set()
    json.loads(DASHBOARD.read_text())


@needs("promtool", "Debian's prometheus")
def test_each_alert_fires_and_none_where_all_is_well(tmp_path):
    rules = yaml.safe_load(ALERTS.read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    cases = shutil.copy(ALERT_CASES, tmp_path)
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert all(f'alertname="{name}"' in ALERT_CASES.read_text() for name in names)
    done = subprocess.run(
        ["promtool", "test", "rules", cases], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
