"""Published vulnerabilities in the parts of an engine, with vLLM's own objects."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
    ExampleConnector,
)
from vllm.entrypoints.openai.responses.context import HarmonyContext
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.pooling.scoring.serving import ServingScores
from vllm.exceptions import VLLMValidationError
from vllm.fixes.request_checks import check_token_ids
from vllm.pooling_params import PoolingParams
from vllm.renderers import embed_utils  # noqa: F401  from then on they are checked
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine import input_processor
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from constrained import BACKENDS, compiled, with_backend
from schedulers import BLOCK_SIZE, engine_config, make_request, make_scheduler


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_of_drafts_is_no_token_of_a_grammar(moe_model, backend):
    """GHSA-85xf-c7hm-whqw"""
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    config = with_backend(moe_model, backend, speculative_config=drafts)
    scheduler = make_scheduler(config)
    request, grammar = compiled(scheduler, config, regex="[ab]*")
    scheduler.requests["r"] = request
    request.structured_output_request.grammar = grammar
    request.num_computed_tokens = request.num_tokens
    a = cached_tokenizer_from_config(config.model_config).encode("a")[0]
    scheduler.update_draft_token_ids(DraftTokenIds(["r"], [[a, -1, -1]]))
    assert request.spec_token_ids == [a]


def processor_of(model, **arguments):
    """A front-end's, and what it makes of a prompt."""
    arguments |= {"skip_tokenizer_init": False, "enable_prompt_embeds": True}
    config = engine_config(model, **arguments)
    processor = InputProcessor(config)

    def ask(params=None, **prompt):
        params = params or SamplingParams(max_tokens=1)
        return processor.process_inputs("r", prompt, params, ("generate",))

    return config, ask


def test_embeddings_alone_are_refused_where_positions_come_from_tokens(
    moe_model, monkeypatch
):
    """GHSA-33cg-gxv8-3p8g, with a model that says so and takes them from elsewhere."""
    config, ask = processor_of(moe_model)
    embeds = {"type": "embeds", "prompt_embeds": torch.zeros(3, 64)}
    assert ask(**embeds).prompt_embeds is not None
    monkeypatch.setattr(type(config.model_config), "uses_mrope", True)
    with pytest.raises(VLLMValidationError, match="M-RoPE"):
        ask(**embeds)


def test_a_negative_token_id_is_refused_by_a_pooling_model(moe_model, monkeypatch):
    """GHSA-25q3-v2hm-8vpf: the check, and that each prompt comes to it."""
    seen = []
    monkeypatch.setattr(input_processor, "check_token_ids", seen.append)
    _, ask = processor_of(moe_model)
    ask(type="token", prompt_token_ids=[5, 7])
    assert seen == [[5, 7]]
    check_token_ids([0, 5])
    with pytest.raises(VLLMValidationError, match="token id -1, which is out of voc"):
        check_token_ids([5, -1])


def test_prompt_logprobs_are_computed_where_a_connector_has_the_prefix(
    moe_model, monkeypatch
):
    """GHSA-rhcx-5729-88vg: in the scheduler, and what a front-end refuses."""
    transfer = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    config, ask = processor_of(moe_model, kv_transfer_config=transfer)
    find = "get_num_new_matched_tokens"
    monkeypatch.setattr(ExampleConnector, find, lambda *_: (2 * BLOCK_SIZE, False))
    scheduler = make_scheduler(config)
    for asked, computed in ((False, 8), (True, 2 * BLOCK_SIZE + 8)):
        request = make_request("r", 2 * BLOCK_SIZE + 8, 1)
        request.skip_reading_prefix_cache = asked
        scheduler.add_request(request)
        assert scheduler.schedule().num_scheduled_tokens == {"r": computed}
        scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
    config.kv_transfer_config.kv_role = "kv_consumer"
    prompt = {"type": "token", "prompt_token_ids": [5, 7]}
    ask(**prompt)
    with pytest.raises(VLLMValidationError, match="computed here"):
        ask(SamplingParams(max_tokens=1, prompt_logprobs=0), **prompt)


def test_sparse_embeddings_are_checked_while_others_are_loaded():
    """GHSA-pr7f-p5mw-fc87: the end of one load takes no check from another."""
    first = torch.sparse.check_sparse_tensor_invariants()
    second = torch.sparse.check_sparse_tensor_invariants()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.sparse.check_sparse_tensor_invariants.is_enabled()
    second.__exit__(None, None, None)
    assert torch.sparse.check_sparse_tensor_invariants.is_enabled()


def test_two_requests_of_one_id_keep_their_own_queries():
    """GHSA-2phq-3phc-84px"""
    keys = []

    class Serving(ServingScores):
        def __init__(self):
            """No engine: what is sent to it is kept."""

        async def _prepare_generators(self, ctx):
            sent = [one.late_interaction_params for one in ctx.pooling_params]
            keys.append([one.query_key for one in sent])

        async def _collect_batch(self, ctx):
            """There are no answers."""

    async def ask():
        for _ in range(2):
            context = SimpleNamespace(
                request=None,
                raw_request=None,
                model_name="m",
                request_id="score-mine",
                pooling_params=PoolingParams(),
                engine_inputs=[{}, {}, {}],
                n_queries=1,
            )
            await Serving()._flash_late_interaction_encode_queries(context)
            await Serving()._flash_late_interaction_encode_docs(context)

    asyncio.run(ask())
    (query,), docs, (other,), others = keys
    assert docs == [query] * 2
    assert others == [other] * 2
    assert query != other
    assert query.startswith("score-mine-query-0-"), "logs name the client's request"


def test_the_turn_after_a_tool_call_has_the_callers_salt():
    """GHSA-935w-9g4m-p28p"""
    sent = []

    class Context(HarmonyContext):
        def __init__(self):
            """One that calls a tool once."""
            self.turns = 0

        def append_output(self, output):
            self.turns += 1

        def need_builtin_tool_call(self):
            return self.turns == 1

        async def call_tool(self):
            return []

        def append_tool_output(self, output):
            """It is not looked at."""

        def render_for_completion(self):
            return [7, 8]

    class Serving(OpenAIServingResponses):
        def __init__(self):
            self.model_config = SimpleNamespace(max_model_len=64)
            self.engine_client = self

        def _log_inputs(self, *_, **__):
            """Nothing is logged."""

        async def generate(self, engine_input, *_, **__):
            sent.append(engine_input)
            yield None

    async def ask():
        first = {"type": "token", "prompt_token_ids": [5], "cache_salt": "mine"}
        turns = Serving()._generate_with_builtin_tools(
            "r", first, SamplingParams(), Context()
        )
        async for _ in turns:
            pass

    asyncio.run(ask())
    assert [each["prompt_token_ids"] for each in sent] == [[5], [7, 8]]
    assert [each.get("cache_salt") for each in sent] == ["mine"] * 2
