"""`vllm serve` on emulated devices with the flags of upstream's own deployments, and
`adaptive` on two ranks: it serves, it is balanced, and the flag does what it says.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from balance_tools.serving.server import Server
from conftest import GRAPHS, PROGRAM_S, REPLAY, UPDATE
from test_greedy_equality import assert_equal, assert_the_gate_decided
from test_serving import ENVIRONMENT, ONE_PROCESS, _patience  # noqa: F401

OPTIONS = (
    *("--dtype", "float32", "--max-model-len", "512", "--api-server-count", "1"),
    *("--gpu-memory-utilization", "0.3", "--max-num-seqs", "2"),
    *("--enable-expert-parallel", "--data-parallel-size", "2"),
    *("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"),
    *("--data-parallel-balance", "adaptive", "--async-scheduling"),
)


def drafts(count: int, method: str = "mtp", **rest: str) -> tuple[str, str]:
    speculation = {"method": method, "num_speculative_tokens": count, **rest}
    return "--speculative-config", json.dumps(speculation)


@dataclass(frozen=True)
class Mode:
    """A way to serve, and what every worker has then done."""

    options: Sequence[str]
    done: Sequence[str]
    model: str = "moe"
    environment: dict[str, str] = field(default_factory=dict)
    workers: int = 2


A3 = {"EMULATOR_DEVICE_TYPE": "A3", "EMULATOR_SOC": "Ascend910_9391"}
GRAPH_OPTIONS = ("--compilation-config", json.dumps(GRAPHS["compilation_config"]))
MODES = {
    "graphs": Mode([*GRAPH_OPTIONS, *ONE_PROCESS], [REPLAY, UPDATE]),
    "fused MC2 on A3": Mode(
        [
            *ONE_PROCESS,
            "--enforce-eager",
            "--additional-config",
            '{"enable_fused_mc2": 1}',
        ],
        ["_C_ascend::dispatch_ffn_combine"],
        environment=A3,
    ),
    "flashcomm1": Mode(
        ["--enforce-eager", "--tensor-parallel-size", "2"],
        [],
        environment={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"},
        workers=4,
    ),
    "MLA": Mode(
        [*ONE_PROCESS, "--enforce-eager"],
        ["npu::npu_fused_infer_attention_score_v2"],
        model="deepseek",
    ),
    "MLA, MTP, graphs": Mode(
        [*ONE_PROCESS, *GRAPH_OPTIONS, *drafts(3)],
        [REPLAY, UPDATE],
        model="deepseek",
    ),
}


@pytest.mark.timeout(3 * PROGRAM_S)
@pytest.mark.parametrize("name", MODES)
def test_it_serves_and_is_balanced(name, models, tmp_path):
    mode = MODES[name]
    counts = tmp_path / "counts"
    environment = ENVIRONMENT | mode.environment | {"EMULATOR_COUNTS": str(counts)}
    folder, expected = models(mode.model)
    options = [*OPTIONS, *mode.options]
    with Server(tmp_path, folder, *options, environment=environment) as server:
        assert_equal(server, expected, concurrency=16)
        assert_the_gate_decided(server, 2, holds=False)
        accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    found = Counter(counts.read_text().splitlines())
    for what in mode.done:
        workers = [line for line in found if line.partition(" ")[2] == what]
        assert len(workers) == mode.workers, (what, found)
    if "--speculative-config" in mode.options:
        assert min(accepted.values()) > 0
