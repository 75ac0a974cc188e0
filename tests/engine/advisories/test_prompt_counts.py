"""What else than completions has many prompts in one request, or much audio."""

import asyncio
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from vllm.entrypoints.generate.generative_scoring.serving import (
    ServingGenerativeScoring,
)
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest
from vllm.entrypoints.pooling.base.serving import PoolingServingBase
from vllm.exceptions import VLLMValidationError
from vllm.fixes import request_checks
from vllm.fixes.request_checks import check_inputs

MOST = 2
TOO_MANY = "VLLM_MAX_COMPLETION_PROMPTS"


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(request_checks, "MOST_PROMPTS", MOST)


def conversations(count):
    return [[{"role": "user", "content": "a"}]] * count


def test_a_batch_has_no_more_conversations_than_completions_have_prompts():
    BatchChatCompletionRequest(messages=conversations(MOST))
    with pytest.raises((ValidationError, VLLMValidationError), match=TOO_MANY):
        BatchChatCompletionRequest(messages=conversations(MOST + 1))


@pytest.mark.parametrize(
    "field", ["input", "data_1", "data_2", "documents", "items", "texts", "inputs"]
)
def test_of_what_generates_nothing_eight_times_as_much_is_taken(field):
    for prompt in ("a", [5, 6]):
        check_inputs(SimpleNamespace(**{field: [prompt] * 8 * MOST}))
        with pytest.raises(VLLMValidationError, match=f"8 times {TOO_MANY}"):
            check_inputs(SimpleNamespace(**{field: [prompt] * (8 * MOST + 1)}))
    check_inputs(SimpleNamespace(**{field: [5] * 100}))  # the tokens of one


async def nothing(*_):
    """What servers look at before."""


def test_servers_count_before_they_tokenize():
    request = SimpleNamespace(
        items=["a"] * 100, documents=["a"] * 100, label_token_ids=[5]
    )
    server = SimpleNamespace(
        request_id_prefix="score",
        models=SimpleNamespace(model_name=str),
        model_config=SimpleNamespace(get_vocab_size=lambda: 9),
        engine_client=SimpleNamespace(errored=False),
        renderer=SimpleNamespace(tokenizer=object()),
        _base_request_id=str,
        _check_model=nothing,
    )
    for call in (
        PoolingServingBase._init_ctx(server, None, request),
        ServingGenerativeScoring.create_generative_scoring(server, request),
    ):
        with pytest.raises(VLLMValidationError, match=TOO_MANY):
            asyncio.run(call)
