"""What one client can do to all others: a bad request fails, and nothing else."""

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.fixes.grammars import FailedGrammar
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from constrained import compiled, verified, with_backend
from schedulers import answer, complete, make_request, make_scheduler


def test_a_bad_request_fails_alone(moe_model, monkeypatch):
    """A front-end refuses what are no tokens of the model, a rank's compiler a grammar
    that the front-end took."""
    config = with_backend(moe_model, "xgrammar")
    for name in ("stop_token_ids", "allowed_token_ids"):
        with pytest.raises(VLLMValidationError, match=f"{name} has ids"):
            verified(config, min_tokens=2, **{name: [1000]})
    scheduler = make_scheduler(config)
    compiled(scheduler, config, regex="[ab]c")  # the first chooses the compiler of all
    backend = scheduler.structured_output_manager.backend
    monkeypatch.setattr(backend, "compile_grammar", None)
    bad, grammar = compiled(scheduler, config, regex="[ab]d")
    assert isinstance(grammar, FailedGrammar)
    bad.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    ends = {}
    for each in (bad, make_request("good", 4, 3)):
        scheduler.add_request(each)
    while scheduler.requests:
        output = scheduler.schedule()
        (answers,) = answer(scheduler, output, complete(scheduler, output)).values()
        ends |= {each.request_id: each.finish_reason for each in answers.outputs}
    assert ends == {"r": FinishReason.ERROR, "good": FinishReason.LENGTH}
