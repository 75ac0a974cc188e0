"""What deploy/ serves is upstream's own recipe, speculation and graphs included."""

import json
import re
import shlex

import pytest
from test_deploy_kubernetes import DEPLOY, VARIANTS, container, pods, workload

from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock

PATHS = Paths.find()
PAGE = "docs/source/tutorials/models/DeepSeek-V3.1.md"
OF_THE_SITE = re.compile(r"host|port|served-model-name|data-parallel-.*|headless")
"""Options that each site chooses, or that a variant computes."""
ALWAYS_OURS = {"--enable-expert-parallel": True}
"""In the command of the manifests, not in `MODEL_OPTIONS`."""

Options = dict[str, str | bool]


def flags(words):
    """Options by name, those in JSON with a name for each field."""
    found: Options = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            value = True if after.startswith("--") else after
            if str(value).startswith("{"):
                fields = json.loads(str(value)).items()
                found |= {f"{word}.{name}": str(field) for name, field in fields}
            else:
                found[word] = value
    return {n: v for n, v in found.items() if not OF_THE_SITE.fullmatch(n[2:])}


def recipes():
    """Variables and options of upstream's commands that have four ranks of 16 slots."""
    version = load_lock(PATHS.lock).vllm_ascend.version
    text = (PATHS.unpacked("vllm-ascend", version) / PAGE).read_text()
    found = []
    for block in re.findall(r"```\{code-block\} bash\n(.*?)```", text, re.S):
        if "--data-parallel-size 4" in block and "--max-num-seqs 16" in block:
            lines, _, command = block.replace("\\\n", " ").partition("vllm serve")
            exported = re.findall(r'^export (\w+)="?([^"\n]*)"?$', lines, re.M)
            found.append((dict(exported), flags(shlex.split(command))))
    return found


def test_upstream_has_one_set_of_options_for_a2_and_a3():
    options = [each for _, each in recipes()]
    assert len(options) >= 3, "one for an A3, and one for each of two A2"
    assert options.count(options[0]) == len(options)
    assert options[0]["--speculative-config.method"] == "mtp"


@pytest.mark.parametrize("variant", VARIANTS)
def test_manifests_have_upstreams_options(variant):
    _, given = container(pods(workload(variant))[0])
    options = flags(str(given["MODEL_OPTIONS"]).split())
    assert options | ALWAYS_OURS == recipes()[0][1]


def test_the_unit_has_upstreams_options():
    text = (DEPLOY / "systemd/vllm.env").read_text()
    (options,) = re.findall(r"^OPTIONS=(.*)$", text, re.M)
    expected = flags(options.split())
    assert expected.pop("--shutdown-timeout")
    assert expected == recipes()[0][1]
