"""The facts of upstream's deployments are those of its own files."""

import csv
import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest
import tomlkit
import yaml

ROOT = Path(__file__).parents[3]
FACTS = ROOT / "bench" / "deployments.tsv"
LOCKS = {
    "0.23.0.post1": ROOT / "upstream.toml",
    "0.30.0rc2": ROOT / "lines" / "0.30" / "upstream.toml",
}
Row = dict[str, str]


def facts(plugin):
    """What is committed of a version, sorted."""
    with FACTS.open(encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return sorted((row for row in rows if row["plugin"] == plugin), key=str)


def documents(plugin):
    """The name and content of each configuration of its end-to-end tests."""
    lock = tomlkit.parse(LOCKS[plugin].read_text())["vllm_ascend"]
    assert lock["version"] == plugin
    path = ROOT / "build" / "cache" / lock["sha256"] / lock["filename"]
    if not path.exists():
        pytest.skip(
            f"{path.name} is not in build/cache: `make vendor` brings that of this "
            "line, `tools/rebase.sh line 0.30` the other"
        )
    with tarfile.open(path) as archive:
        for member in archive:
            if re.search(r"/tests/e2e/.*\.yaml$", member.name):
                file = archive.extractfile(member)
                assert file is not None
                try:
                    yield Path(member.name).stem, yaml.safe_load(file)
                except yaml.YAMLError:
                    assert "Qwen3_32b" in member.name, "the only one that is none"


def servers(document):
    """Options, environment and benchmarks of the servers that one describes."""
    if not isinstance(document, dict):
        return
    for case in [*document.get("test_cases", ()), document]:
        nodes = case.get("deployment", case)
        first = nodes[0] if isinstance(nodes, list) else nodes
        if "server_cmd" not in first:
            continue
        words: list[str] = []
        for part in (first["server_cmd"], first.get("server_cmd_extra")):
            words += (
                shlex.split(part) if isinstance(part, str) else map(str, part or ())
            )
        environment = [document.get("env_common"), case.get("envs"), first.get("envs")]
        merged = {key: val for each in environment for key, val in (each or {}).items()}
        yield options(words), merged, case.get("benchmarks") or {}


def options(words):
    found, name = {}, ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].replace("_", "-").partition("=")
            found[name] = value
        elif name:
            found[name], name = word, ""
    return found


def is_switched_on(given, environment):
    more = json.loads(given.get("additional-config") or "{}")
    return (
        str(environment.get("VLLM_ASCEND_BALANCE_SCHEDULING")) == "1"
        or more.get("enable_balance_scheduling") is True
        or more.get("scheduler_config", {}).get("enable_balance_scheduling") is True
    )


def row(plugin, name, given, benchmark):
    """As in the file of facts."""
    drafts = json.loads(given.get("speculative-config") or "{}")
    data = benchmark["dataset_path"]
    length = re.search(r"in(\d+)", data)
    assert length is not None, data
    told = {"enable-prefix-caching": "yes", "no-enable-prefix-caching": "no"}
    return {
        "plugin": plugin,
        "config": name,
        "ranks": given["data-parallel-size"],
        "tensor_parallel": given["tensor-parallel-size"],
        "slots": given["max-num-seqs"],
        "step_tokens": given["max-num-batched-tokens"],
        "model_len": given["max-model-len"],
        "drafts": str(drafts.get("num_speculative_tokens", 0)),
        "prefix_caching": next((told[n] for n in told if n in given), "default"),
        "async": "yes" if "async-scheduling" in given else "no",
        "clients": str(benchmark["batch_size"]),
        "prompts": str(benchmark["num_prompts"]),
        "prompt_len": length[1],
        "hits": "90" if "prefix90" in data else "0",
        "output_len": str(benchmark["max_out_len"]),
        # 0 and 1 stand for none.
        "published": str(benchmark["baseline"]) if benchmark["baseline"] > 1 else "-",
    }


@pytest.mark.parametrize("plugin", LOCKS)
def test_facts_are_those_of_the_locked_sources(plugin):
    """Of all that have the switch on, several ranks, and more than one client."""
    found: list[Row] = []
    for name, document in documents(plugin):
        for given, environment, benchmarks in servers(document):
            if int(given.get("data-parallel-size") or 1) < 2:
                continue
            if not is_switched_on(given, environment):
                continue
            found += [
                row(plugin, name, given, each)
                for each in benchmarks.values()
                if each["case_type"] == "performance" and each["batch_size"] > 1
            ]
    distinct = [json.loads(each) for each in {json.dumps(row) for row in found}]
    assert sorted(distinct, key=str) == facts(plugin)
    assert distinct, "the files are read"
