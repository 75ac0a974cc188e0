"""With a drafter, in real engine loops: texts, and drafts, are what they must be.

Equal text proves nothing about a drafter: the target repairs whatever it drafts. So
each draft is compared with that of an oracle that has no cache.
"""

import itertools
import random
from collections import Counter

import pytest

from dp_loop import prompt_of
from drafters import DRAFTED_BY, Drafter
from hugging_face import continuations
from test_waves import (
    BLOCK,
    OUTPUT,
    PAUSES,
    CheckedModelEngine,
    check,
    ranks_with_the_model,
    stress,
)
from vllm_balance.core.policies import POLICIES

PROMPT, SHARED = 92, 2 * BLOCK
"""Of two blocks in common one is a hit: of the last, MTP and EAGLE drop it."""


class DraftingEngine(CheckedModelEngine):
    """Keeps what was drafted, after how many tokens of which request.

    Not what upstream drafts wrongly: behind a part of a prompt it reads the request's
    last token, and what is equal later reads that from the cache.
    """

    def __init__(self, vllm_config, trace):
        super().__init__(vllm_config, trace)
        trace.drafts, trace.hits = [], 0
        self._in_parts: set[int] = set()
        """Lengths of prompts, which stand for their texts."""
        self._shared_in_parts = False
        self._runner = self.model_executor.driver_worker.worker.model_runner
        self._propose = self._runner.drafter.propose
        self._runner.drafter.propose = self._record_drafts

    def _record(self, output):
        super()._record(output)
        new = output.scheduled_new_reqs
        self.trace.hits += sum(request.num_computed_tokens > 0 for request in new)

    def _record_drafts(self, *args, **kwargs):
        computed = kwargs["common_attn_metadata"].seq_lens.clone()
        rejected = kwargs["num_rejected_tokens_gpu"]
        if rejected is not None:
            computed -= rejected
        newest = kwargs["next_token_ids"].tolist()
        in_part = self._runner.discard_request_mask.np.tolist()
        drafts = self._propose(*args, **kwargs)
        for name, part, *what in zip(
            self._runner.input_batch.req_ids,
            in_part,
            computed.tolist(),
            newest,
            drafts.tolist(),
            strict=False,
        ):
            prompt = self._runner.requests[name].num_prompt_tokens
            if part:
                self._in_parts.add(prompt)
                self._shared_in_parts |= what[0] < SHARED
            elif prompt not in self._in_parts and not self._shared_in_parts:
                self.trace.drafts.append((prompt, *what))
        return drafts


@pytest.fixture(scope="module")
def texts(drafting_models):
    """The prompt of each third length and what follows it, unless near a tie."""
    prompts = {n: tuple(prompt_of(n, SHARED)) for n in range(1, PROMPT + 1, 3)}
    answers = continuations(drafting_models / "deepseek", prompts.values())
    return {
        n: prompt + answer
        for (n, prompt), answer in zip(prompts.items(), answers, strict=True)
        if answer
    }


@pytest.fixture(scope="module")
def drafter_of(drafting_models):
    made: dict[str, Drafter] = {}

    def drafter(method):
        return made.setdefault(method, Drafter(method, drafting_models))

    return drafter


def run(models, method, count, policy, asynchronous):
    speculation = {"method": method, "num_speculative_tokens": count}
    if method != "mtp":
        speculation["model"] = str(models / method)
    with ranks_with_the_model(
        DraftingEngine,
        models / "deepseek",
        policy,
        speculative_config=speculation,
        enable_expert_parallel=method == "mtp",  # 0.30 refuses it for dense drafters
        async_scheduling=asynchronous,
        enable_prefix_caching=True,
        max_num_batched_tokens=256,
        max_model_len=128,
        num_gpu_blocks_override=8,
        additional_config={"kv_blocks": 100, "shared_prefix": SHARED},
    ) as ranks:
        # Upstream's asynchronous scheduler loses the drafts of a pause that keeps
        # requests, with any policy: docs/compatibility.md.
        pauses = ("wait", "abort") if asynchronous else PAUSES
        stress(ranks, random.Random(policy), 5, pauses, tokens=(PROMPT, OUTPUT))
        reports = ranks.stop()
    return ranks, reports


FAST, CI = ("mtp", 3, "cap", True), ("eagle3", 3, "cap", False)
SLOW = {FAST: [], CI: [pytest.mark.slow, pytest.mark.ci]}
CASES = [
    pytest.param(*case, marks=SLOW.get(case, pytest.mark.slow))
    for case in itertools.product(DRAFTED_BY, (1, 3), POLICIES, (False, True))
]


@pytest.mark.parametrize(("method", "count", "policy", "asynchronous"), CASES)
def test_text_and_drafts(
    drafting_models, texts, drafter_of, method, count, policy, asynchronous
):
    ranks, reports = run(drafting_models, method, count, policy, asynchronous)
    check(reports, 5)
    different = [
        (prompt, answer)
        for prompt, answer in ranks.answers
        if prompt in texts and answer != list(texts[prompt][prompt:])[: len(answer)]
    ]
    assert different[:5] == []
    said: Counter[str] = Counter()
    wrong = []
    drafter = drafter_of(method)
    for trace, _ in reports:
        for prompt, computed, newest, drafts in trace.drafts:
            text = texts.get(prompt, ())
            if computed >= len(text):  # of no text, or beyond its end
                continue
            expected = drafter.drafts(text[: computed + 1], count)
            said["drafts"] += 1
            said["accepted"] += drafts[:1] == list(text[computed + 1 : computed + 2])
            if newest != text[computed] or drafts[: len(expected)] != expected:
                wrong.append((prompt, computed, newest, drafts, expected))
    print(dict(said))
    assert wrong[:5] == []
    assert sum(trace.hits for trace, _ in reports) > 0
    assert 0.2 < said["accepted"] / said["drafts"] < 0.9
