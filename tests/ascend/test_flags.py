"""`vllm serve` on emulated devices with the flags of upstream's own deployments, and
`adaptive` on two ranks: it serves, it is balanced, and each flag does what it says.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from conftest import GRAPHS, PROGRAM_S, REPLAY, UPDATE
from test_greedy_equality import assert_equal, assert_the_gate_decided
from test_serving import ENVIRONMENT, ONE_PROCESS, _patience  # noqa: F401
from vllm_server import Server

OPTIONS = (
    "--dtype=float32",
    "--max-model-len=512",
    "--api-server-count=1",
    "--gpu-memory-utilization=0.3",
    "--max-num-seqs=2",
    "--max-num-batched-tokens=4096",
    "--no-enable-prefix-caching",
    "--enable-expert-parallel",
    "--data-parallel-size=2",
    "--data-parallel-balance=adaptive",
    "--async-scheduling",
)
EAGER = ("--enforce-eager",)
IN_GRAPHS = ("--compilation-config", json.dumps(GRAPHS["compilation_config"]))
FUSED = ("--additional-config", json.dumps({"enable_fused_mc2": 1}))
A3 = {"EMULATOR_DEVICE_TYPE": "A3", "EMULATOR_SOC": "Ascend910_9391"}
FUSED_CALL = "_C_ascend::dispatch_ffn_combine"
LATENT_CALL = "npu::npu_fused_infer_attention_score_v2"
INDEXER_CALL = "npu::npu_lightning_indexer"
SPARSE_CALL = "_C_ascend::npu_sparse_flash_attention"
QUANTISED_CALL = "npu::npu_quant_matmul"
FOUR_BITS = "_C_ascend::grouped_matmul_swiglu_quant_v2"


@dataclass(frozen=True)
class Mode:
    """A way to serve, and what every worker has done then.

    Attributes:
        model: its tiny model.
        options: more than those of all.
        done: what the emulator has counted in each worker.
        environment: of the server.
        draft: how drafts are made; three each time.
        tensor: tensor parallel ranks.
    """

    model: str
    options: Sequence[str]
    done: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    draft: str | None = None
    tensor: int = 1


def slow(name: str):
    return pytest.param(name, marks=pytest.mark.slow)


MODES = {
    "graphs": Mode("moe", IN_GRAPHS, [REPLAY, UPDATE]),
    "MLA, MTP, graphs, fused MC2, A3": Mode(
        "deepseek",
        [*IN_GRAPHS, *FUSED],
        [REPLAY, UPDATE, FUSED_CALL, f"{LATENT_CALL}.out"],
        environment=A3,
        draft="mtp",
    ),
    "W8A8, MLA, MTP, graphs, fused MC2, A3": Mode(
        "deepseek in int8",
        [*IN_GRAPHS, *FUSED],
        [REPLAY, UPDATE, FUSED_CALL, f"{LATENT_CALL}.out", QUANTISED_CALL],
        environment=A3,
        draft="mtp",
    ),
    "GLM-5, MTP, graphs, fused MC2, A3": Mode(
        "GLM-5",
        [*IN_GRAPHS, *FUSED, "--max-model-len", "4096"],
        [REPLAY, FUSED_CALL, INDEXER_CALL, SPARSE_CALL],
        environment=A3,
        draft="mtp",
    ),
    "W8A8, graphs": Mode(
        "deepseek in int8", IN_GRAPHS, [REPLAY, UPDATE, QUANTISED_CALL]
    ),
    "W8A8, graphs, A3": Mode(
        "deepseek in int8",
        IN_GRAPHS,
        [REPLAY, UPDATE, "npu::npu_moe_distribute_dispatch_v2", "HcclAlltoAllV"],
        environment=A3,
    ),
    "W4A8, EAGLE3, graphs": Mode(
        "deepseek in int4", IN_GRAPHS, [REPLAY, UPDATE, FOUR_BITS], draft="eagle3"
    ),
    "W4A8, MTP, graphs, fused MC2, A3": Mode(
        "deepseek in int4",
        [*IN_GRAPHS, *FUSED],
        [REPLAY, UPDATE, FUSED_CALL],
        environment=A3,
        draft="mtp",
    ),
    "MLA": Mode("deepseek", EAGER, [LATENT_CALL]),
    "EAGLE3, graphs": Mode("deepseek", IN_GRAPHS, [REPLAY, UPDATE], draft="eagle3"),
    "fused MC2, A3": Mode("moe", [*EAGER, *FUSED], [FUSED_CALL], environment=A3),
    "flashcomm1": Mode(
        "moe",
        EAGER,
        ["HcclReduceScatter"],
        environment={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"},
        tensor=2,
    ),
}
FAST = (
    "graphs",
    "MLA, MTP, graphs, fused MC2, A3",
    "W8A8, MLA, MTP, graphs, fused MC2, A3",
)


@pytest.mark.timeout(3 * PROGRAM_S)
@pytest.mark.parametrize("name", [n if n in FAST else slow(n) for n in MODES])
def test_it_serves_and_is_balanced(name, models, counts, tmp_path):
    mode = MODES[name]
    folder, expected = models(mode.model)
    options = [*OPTIONS, *mode.options, "--tensor-parallel-size", str(mode.tensor)]
    if mode.tensor == 1:
        options += ONE_PROCESS
    if mode.draft:
        speculation = {"method": mode.draft, "num_speculative_tokens": 3}
        if mode.draft != "mtp":
            speculation["model"] = str(models(mode.draft)[0])
        options += ["--speculative-config", json.dumps(speculation)]
    environment = ENVIRONMENT | mode.environment
    with Server(tmp_path, folder, *options, environment=environment) as server:
        assert_equal(server, expected, concurrency=16)
        assert_the_gate_decided(server, 2, holds=False)
        accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    found = set(counts.read_text().splitlines())
    for what in mode.done:
        workers = [line for line in found if line.partition(" ")[2] == what]
        assert len(workers) == 2 * mode.tensor, (what, workers)
    assert (sum(accepted.values()) > 10) == bool(mode.draft)
