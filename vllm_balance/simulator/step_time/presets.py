# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Named constants of the step time, with where they come from.

*Not run on hardware* by us. *Estimated* are sums of public timings of single operators
for DeepSeek-V3 W8A8, layer by layer, fitted by least squares: the tables of
`xiaowanCN/aiconfigurator-npu` (ascend_910b, vllm-ascend 0.23.0: context_mla,
generation_mla) and of `hudingyi688/aiconfigurator-npu` (GEMM and grouped GEMM grids,
HCCL of 2 to 32 ranks), with guesses for host time and the imbalance of experts.
*Derived* are differences of figures that others measured. What those say that nothing
was fitted to is in docs/measurements.md, beside what is simulated.

- `t0` (estimated): 57 ms with DP 4 TP 4, 63 with DP 16 TP 1. With twice as many dies
  (derived) the experts of one are read in 12.8 ms instead of 25.5, 653 GB at 1.6 TB/s,
  while dispatch and combine of 58 layers take 17.6 ms instead of 15.9
  (sgl-kernel-npu, A3, 128 tokens: 304 and 274 microseconds).
- `a` (derived): a decode instance of SGLang on A3, DeepSeek-R1, DP 16 TP 1 and three
  drafts, takes 116 to 120 ms for a step of about 20 requests; t0, context and the
  drafter leave 0.47 ms for each of 80 tokens. With TP 4 a quarter (assumed).
- `b` (estimated): 109 microseconds with TP 4 on A3, 242 on A2; with TP 1 366 and 731.
  With twice as many dies 7 more (derived): sgl-kernel-npu, 4,096 tokens, 102 and 95
  GB/s instead of 107 and 103.
- `c` (derived): 109 ms. vllm-ascend #7723 takes 55.6 ms for a step in a graph, and 165
  for the same without. With FULL_DECODE_ONLY, which all deployments of upstream with
  balance have, steps with a prompt are without. Where the NPU is slower than the host
  that launches, part of it would be hidden: it is taken whole.
- `context` (estimated): 100 nanoseconds.
- `drafter` (derived): 3 ms a pass: a layer launched without a graph, as 165 ms / 62.
- `attention` (estimated): a prompt token costs twice as much at 5,000 tokens of
  context with TP 1 and at 10,000 with TP 4.
- `projection` (derived): `_compute_prefill_context` of vllm_ascend's `mla_v1.py`
  projects what precedes a chunk each time: by the shapes 2 * 512 * 256 * 128 operations
  per token and layer, of 61, 11 microseconds at 60 % of the 313 TFLOPS of an A2.
  Writing what it yields, joining it with the rotated keys and reading it, 18 MB, takes
  14 more at 1.3 TB/s.
- `phi` (by source): how prefills are exchanged in vllm-ascend 0.23.0.post1. On A2 an
  all-gather padded to the longest rank, 0; on A3 an all-to-all, 0.31 and 0.38, which a
  rank that only decodes pads while its graph mode is on.

*Sparse* attention (DeepSeek-V3.2, GLM-5.x) works on the latents (`sfa_v1.py`), so
`projection` is 0. vllm-project/afd-plugin measured DeepSeek-V3.2 without drafts on A3,
DP 64 TP 1: 68.8 ms with 16 requests of 16k tokens a rank, 47.6 with 8 of 32k. Derived
are `context` 0, `a` 2.65 ms and `t0` 26.4; with half the dies 31 (as above). `a` is the
same with TP 4: indexer and latents are not split (assumed). By the shapes the indexer
computes a fifth for each token that one attends to, and so is `attention` (derived).
`b`, `c`, `drafter`, `phi` and all of A2 are taken over (assumed).
"""

from dataclasses import replace

from .model import DEEPSEEK_V3_1, CostModel


def _ascend(t0_ms: float, b_us: float, phi: float, tensor_parallel: int) -> CostModel:
    doubled_at = 5_000 if tensor_parallel == 1 else 10_000
    return CostModel(
        t0=t0_ms / 1e3,
        a=470e-6 / tensor_parallel,
        b=b_us / 1e6,
        c=0.109,
        context=100e-9,
        attention=b_us / 1e6 / doubled_at,
        projection=25e-6 / tensor_parallel,
        phi=phi,
        drafter=3e-3,
    )


def _sparse(t0_ms: float, dense: CostModel) -> CostModel:
    return replace(
        dense,
        t0=t0_ms / 1e3,
        a=2.65e-3,
        context=0.0,
        attention=dense.attention / 5,
        projection=0.0,
    )


PRESETS: dict[str, CostModel] = {
    "deepseek-v3.1-5212": DEEPSEEK_V3_1,
    "a2-dp4-tp4": _ascend(57, 242, 0.0, 4),
    "a2-dp16-tp1": _ascend(63, 731, 0.0, 1),
    "a3-dp4-tp4": _ascend(57, 109, 0.31, 4),
    "a3-dp4-tp4-padded": replace(_ascend(57, 109, 0.31, 4), padded=1),
    "a3-dp16-tp1": _ascend(63, 366, 0.38, 1),
    "a3-dp32-tp1": _ascend(52, 373, 0.38, 1),
}
"""By device, data and tensor parallel size; `deepseek-v3.1-5212` is fitted to the
throughput that vllm-ascend #5212 reports, and is the default."""
PRESETS |= {
    "a2-dp8-tp4-sparse": _sparse(31, PRESETS["a2-dp4-tp4"]),
    "a3-dp8-tp4-sparse": _sparse(31, PRESETS["a3-dp4-tp4"]),
    "a3-dp8-tp4-sparse-padded": _sparse(31, PRESETS["a3-dp4-tp4-padded"]),
    "a3-dp64-tp1-sparse": _sparse(26.4, PRESETS["a3-dp32-tp1"]),
}
