"""Every alert fires on what it is for, by Prometheus's own tool."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from test_dashboard import METRICS, UPSTREAM, names, samples

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy/kubernetes/monitoring/alerts.yaml"
CASES = Path(__file__).with_name("alerts.yaml")
BALANCE = METRICS.parent
PAGE = ROOT / "docs/operations.md"


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text())["spec"]["groups"]
    return group["rules"]


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool: install Debian's prometheus"
)
def test_every_alert_fires_when_it_should(tmp_path):
    command = ["promtool", "test", "rules", "cases.yaml"]
    shutil.copy(CASES, tmp_path / "cases.yaml")

    def promtool(text):
        (tmp_path / "rules.yaml").write_text(text)
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    text = yaml.safe_dump(yaml.safe_load(ALERTS.read_text())["spec"], width=1000)
    done = promtool(text)
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in rules():  # and each of them is needed
        without = text.replace(f"alert: {rule['alert']}\n", "alert: Another\n")
        assert without != text
        assert promtool(without).returncode != 0, rule["alert"]


def test_every_alert_is_over_metrics_and_reasons_that_exist():
    text = " ".join(rule["expr"] for rule in rules())
    used = set(re.findall(r"vllm:\w+", text))
    assert used
    assert used - UPSTREAM <= samples()
    assert set(re.findall(r'reason="(\w+)"', text)) <= reasons()


def test_the_labels_that_tell_groups_apart_are_scraped():
    """Each is one of the pods; the name is what Prometheus makes of it."""
    monitor = yaml.safe_load(ALERTS.with_name("podmonitor.yaml").read_text())
    given = {re.sub(r"\W", "_", n) for n in monitor["spec"]["podTargetLabels"]}
    used = set(re.findall(r"\w+_k8s_io_\w+|app_kubernetes_io_\w+", CASES.read_text()))
    assert len(used) == 2
    assert used == given


@pytest.mark.parametrize("variant", ["leaderworkerset", "statefulset"])
def test_as_many_ranks_are_expected_as_a_group_has(variant):
    text = (ALERTS.parents[1] / variant / f"{variant}.yaml").read_text()
    (hosts,) = re.findall(r"^ +size: (\d+)|^  replicas: (2)", text, re.M)
    (ranks,) = re.findall(r"name: RANKS_PER_HOST\n +value: \"(\d+)\"", text)
    (rule,) = [r for r in rules() if r["alert"] == "VLLMBalanceRanksMissing"]
    (expected,) = re.findall(r"< (\d+)", rule["expr"])
    assert int("".join(hosts)) * int(ranks) == int(expected)


def reasons():
    text = "".join(path.read_text() for path in BALANCE.rglob("*.py"))
    found = re.findall(r'reason="(\w+)"(?: if \w+ else "(\w+)")?', text)
    found += re.findall(r'^(?:BOUND_REACHED|LOSING) = "(\w+)"()', text, re.M)
    return {reason for pair in found for reason in pair if reason}


def test_the_page_explains_every_metric_and_reason():
    page = PAGE.read_text()
    assert len(names()) >= 7
    assert [name for name in names() if f"`{name}" not in page] == []
    assert len(reasons()) >= 12
    assert [reason for reason in sorted(reasons()) if f"`{reason}`" not in page] == []
