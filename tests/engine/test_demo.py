"""The two halves of `make demo`, smaller: real servers, clients and logs."""

import sys
from pathlib import Path

import pytest

from balance_tools.demo import load as demo_load
from balance_tools.demo.load import COPIES, QUESTIONS, answers


def test_every_question_is_answered(tmp_path, moe_model):
    """That no policy changes an answer is in `test_each_policy`."""
    found = answers(Path(sys.executable), tmp_path, moe_model, "adaptive")
    assert len(found) == COPIES * len(QUESTIONS)
    assert len(set(found.values())) > COPIES


@pytest.mark.slow
def test_what_the_ranks_do_is_seen(tmp_path, moe_model):
    """Prompts are computed more often on all ranks at once than with balance off."""
    together = {}
    for policy in demo_load.POLICIES:
        folder = tmp_path / policy
        folder.mkdir()
        python = Path(sys.executable)
        run = demo_load.measure(python, folder, moe_model, policy, requests=64)
        assert {step.rank for step in run.steps} == set(range(demo_load.RANKS))
        assert (
            sum(step.prefill for step in run.steps) >= run.bench["total_input_tokens"]
        )
        prompts = [step for step in run.steps if step.prefill]
        beside = [
            sum(s.start < p.end and p.start < s.end for s in prompts) for p in prompts
        ]
        together[policy] = sum(beside) / len(beside)
    assert together["adaptive"] > together["off"]
