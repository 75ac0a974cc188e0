# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Named constants of the step time, with where they come from.

The Ascend ones are estimates layer by layer for DeepSeek-V3 W8A8, summed from public
timings of single operators and fitted by least squares; *not run on hardware* by us.
Sources: the operator tables of `xiaowanCN/aiconfigurator-npu` (ascend_910b, vllm-ascend
0.23.0: context_mla, generation_mla) and of `hudingyi688/aiconfigurator-npu` (GEMM and
grouped GEMM grids, HCCL of 2 to 32 ranks). Host time, imbalance of the experts and the
all-to-all of unequal parts are guesses. How prefills are exchanged follows from the
source of vllm-ascend 0.23.0.post1: on A2 an all-gather padded to the longest rank (phi
0); on A3 an all-to-all, which a rank that only decodes pads while its graph mode is on.
Attention doubles the cost of a prompt token at 5,000 tokens of context with one tensor
parallel rank and at 10,000 with four.

`_compute_prefill_context` of `vllm_ascend/attention/mla_v1.py` projects what precedes
a chunk each time. By the shapes of the model that is 2 * 512 * 256 * 128 operations
per token and layer, of 61: 11 microseconds at 60 % of the 313 TFLOPS of an A2. Writing
what it yields, joining it with the rotated keys and reading it, 18 MB, takes 14 more at
1.3 TB/s. GLM-5 does not: its sparse attention (`sfa_v1.py`) works on the latents.
"""

from dataclasses import replace

from .model import DEEPSEEK_V3_1, CostModel


def _ascend(t0_ms: float, b_us: float, phi: float, tensor_parallel: int) -> CostModel:
    doubled_at = 5_000 if tensor_parallel == 1 else 10_000
    return CostModel(
        t0=t0_ms / 1e3,
        a=60e-6,  # 56 to 64 microseconds
        b=b_us / 1e6,
        c=0.0,
        context=100e-9,  # 96 to 104 nanoseconds
        attention=b_us / 1e6 / doubled_at,
        projection=25e-6 / tensor_parallel,
        phi=phi,
    )


PRESETS: dict[str, CostModel] = {
    "deepseek-v3.1-5212": DEEPSEEK_V3_1,
    "a2-dp4-tp4": _ascend(57, 242, 0.0, 4),
    "a2-dp16-tp1": _ascend(63, 731, 0.0, 1),
    "a3-dp4-tp4": _ascend(57, 109, 0.31, 4),
    "a3-dp4-tp4-padded": replace(_ascend(57, 109, 0.31, 4), padded=1),
    "a3-dp16-tp1": _ascend(63, 366, 0.38, 1),
    "a3-dp32-tp1": _ascend(48, 388, 0.38, 1),
}
"""By device, data and tensor parallel size; `deepseek-v3.1-5212` is fitted to the
throughput that vllm-ascend #5212 reports, and is the default."""
