"""The dashboard is one that Grafana imports, over metrics that exist."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy/grafana/dp-balance.json"
METRICS = ROOT / "vllm/v1/core/sched/balance/metrics.py"
NAME = r'"(vllm:[a-z_]+)"'
SUFFIXES = {
    "counter": ["_total"],
    "gauge": [""],
    "histogram": ["_bucket", "_sum", "_count"],
}
UPSTREAM = {
    *("vllm:time_to_first_token_seconds_bucket", "vllm:generation_tokens_total"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
}


def names():
    return re.findall(NAME, METRICS.read_text())


def samples():
    text = METRICS.read_text()
    made = re.findall(r'(counter|gauge)\(\s*name="(vllm:[a-z_]+)"', text)
    kinds = dict.fromkeys(names(), "histogram") | {name: kind for kind, name in made}
    _, _, gauges = text.partition("_GAUGES = {")
    kinds |= dict.fromkeys(re.findall(NAME, gauges.partition("\n}\n")[0]), "gauge")
    return {name + suffix for name, kind in kinds.items() for suffix in SUFFIXES[kind]}


def expressions(dashboard):
    targets = [t for panel in dashboard["panels"] for t in panel["targets"]]
    return [target["expr"] for target in targets]


def test_every_metric_exists():
    dashboard = json.loads(DASHBOARD.read_text())
    used = set(re.findall(r"vllm:\w+", " ".join(expressions(dashboard))))
    assert used - UPSTREAM <= samples(), used - UPSTREAM - samples()
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    (metric,) = re.findall(r"vllm:\w+", variables["model"]["definition"])
    assert metric in UPSTREAM, "a server with balance off must be in the list, too"


def test_every_metric_of_ours_is_shown():
    text = " ".join(expressions(json.loads(DASHBOARD.read_text())))
    assert len(names()) >= 5
    assert [name for name in names() if name not in text] == []


def test_every_variable_is_declared():
    dashboard = json.loads(DASHBOARD.read_text())
    declared = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used <= declared | {"__rate_interval", "__all"}


def test_panels_can_be_narrowed_to_a_namespace_and_an_instance():
    for expression in expressions(json.loads(DASHBOARD.read_text())):
        selectors = re.findall(r"\{([^}]*)\}", expression)
        assert selectors
        for selector in selectors:
            assert 'namespace=~"$namespace", instance=~"$instance"' in selector
