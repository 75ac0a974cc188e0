"""Published vulnerabilities in the parts of an engine, with vLLM's own objects."""

import asyncio
import base64
import json
from io import BytesIO
from types import SimpleNamespace

import pytest
import soundfile
import torch
from aiohttp import web
from PIL import Image
from vllm import envs
from vllm.connections import HTTPConnection
from vllm.entrypoints.openai.responses.context import HarmonyContext
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.pooling.scoring.serving import ServingScores
from vllm.exceptions import VLLMValidationError
from vllm.fixes import grammars, media
from vllm.fixes.limits import limit
from vllm.fixes.survival import FailedGrammar
from vllm.multimodal.media.audio import AudioMediaIO, load_audio_pyav
from vllm.multimodal.media.image import ImageMediaIO
from vllm.pooling_params import PoolingParams
from vllm.renderers.embed_utils import safe_load_prompt_embeds
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.outputs import DraftTokenIds

from schedulers import engine_config, make_request, make_scheduler

EXPONENTIAL = "(a|b)*a(a|b){20}"
"""An automaton of a million states."""
BACKENDS = ("xgrammar", "guidance", "outlines")
"""Without lm-format-enforcer, whose pinned release imports what 0.23.0 has not."""


def constrained(config, **constraint):
    """Params as a front-end has checked them."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    params.verify(
        config.model_config,
        None,
        config.structured_outputs_config,
        cached_tokenizer_from_config(config.model_config),
    )
    return params


def compiled(scheduler, config, **constraint):
    """The grammar of a request that the scheduler gets."""
    request = make_request("r", 4, 4)
    request.sampling_params = constrained(config, **constraint)
    request.structured_output_request = type(
        request.structured_output_request or structured(request.sampling_params)
    ).from_sampling_params(request.sampling_params)
    manager = scheduler.structured_output_manager
    manager.grammar_init(request)
    return request, request.structured_output_request._grammar.result(60)


def structured(params):
    from vllm.v1.structured_output.request import StructuredOutputRequest

    return StructuredOutputRequest(params=params.structured_outputs)


def with_backend(model, backend, **arguments):
    return engine_config(
        model,
        skip_tokenizer_init=False,
        structured_outputs_config={"backend": backend},
        **arguments,
    )


def test_a_limit_that_is_no_number_is_refused_by_its_name(monkeypatch):
    monkeypatch.setattr(envs, "environment_variables", dict(envs.environment_variables))
    monkeypatch.setenv("VLLM_MAX_TESTS", "7")
    assert limit("VLLM_MAX_TESTS", 3) == 7
    envs.validate_environ(hard_fail=True)
    monkeypatch.setenv("VLLM_MAX_TESTS", "many")
    with pytest.raises(ValueError, match="VLLM_MAX_TESTS: expected a whole number"):
        limit("VLLM_MAX_TESTS", 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_compiles_what_it_did(moe_model, backend):
    config = with_backend(moe_model, backend)
    _, grammar = compiled(make_scheduler(config), config, regex="[ab]c")
    assert not isinstance(grammar, FailedGrammar)
    assert not grammar.is_terminated()


@pytest.mark.parametrize("kind", ["regex", "json"])
def test_an_automaton_of_exponential_size_is_given_up(moe_model, kind, monkeypatch):
    """GHSA-rwxx-mrjm-wc2m: in a process, which takes its memory with it."""
    monkeypatch.setattr(grammars, "MOST_REGEX_SECONDS", 2)
    monkeypatch.setattr(grammars, "MOST_SECONDS", 2)
    config = with_backend(moe_model, "outlines")
    schema = {"type": "string", "pattern": EXPONENTIAL}
    value = EXPONENTIAL if kind == "regex" else schema
    _, grammar = compiled(make_scheduler(config), config, **{kind: value})
    assert isinstance(grammar, FailedGrammar)


def test_a_compiler_that_takes_too_long_is_given_up(moe_model, monkeypatch):
    monkeypatch.setattr(grammars, "MOST_SECONDS", 1)
    config = with_backend(moe_model, "xgrammar")
    scheduler = make_scheduler(config)
    compiled(scheduler, config, regex="[ab]c")
    backend = scheduler.structured_output_manager.backend
    ends = asyncio.Event()

    def compile_grammar(*_, **__):
        while not ends.is_set():
            pass

    monkeypatch.setattr(backend, "compile_grammar", compile_grammar)
    _, grammar = compiled(scheduler, config, json={"type": "string"})
    ends.set()
    assert isinstance(grammar, FailedGrammar)


def test_a_large_constraint_is_checked_once_and_beside_the_event_loop(moe_model):
    config = with_backend(moe_model, "auto")
    processor = InputProcessor(config)
    words = [f"c{i:07d}" for i in range(2_000)]
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=words))
    asyncio.run(grammars.check_beside(processor, params))
    assert grammars.was_checked(params.structured_outputs)
    assert params.structured_outputs.grammar.startswith("root ::= ")
    assert params.structured_outputs._backend == "xgrammar"


@pytest.mark.parametrize("backend", ["xgrammar", "guidance", "outlines"])
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


def test_embeddings_alone_are_refused_where_positions_come_from_tokens(moe_model):
    """GHSA-33cg-gxv8-3p8g"""
    embeds = {"type": "embeds", "prompt_embeds": torch.zeros(3, 64)}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
    for overrides, refused in (({}, False), ({"rope_parameters": rope}, True)):
        config = engine_config(
            moe_model,
            skip_tokenizer_init=False,
            enable_prompt_embeds=True,
            hf_overrides=overrides,
        )
        assert config.model_config.uses_mrope is refused
        processor = InputProcessor(config)

        def ask(processor=processor):
            return processor.process_inputs(
                "r", embeds, SamplingParams(max_tokens=1), ("generate",)
            )

        if refused:
            with pytest.raises(VLLMValidationError, match="M-RoPE"):
                ask()
        else:
            assert ask().prompt_embeds is not None


def test_sparse_embeddings_are_checked_while_others_are_loaded(moe_model):
    """GHSA-pr7f-p5mw-fc87: the end of one load takes no check from another."""
    config = engine_config(moe_model, enable_prompt_embeds=True).model_config
    buffer = BytesIO()
    first = torch.sparse.check_sparse_tensor_invariants()
    second = torch.sparse.check_sparse_tensor_invariants()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.sparse.check_sparse_tensor_invariants.is_enabled()
    second.__exit__(None, None, None)
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        bad = torch.sparse_coo_tensor(torch.tensor([[99], [0]]), [1.0], (3, 64))
        torch.save(bad, buffer)
    with pytest.raises(Exception, match="ind"):
        safe_load_prompt_embeds(config, base64.b64encode(buffer.getvalue()))


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


def test_an_image_is_refused_by_its_size_and_without_an_address(monkeypatch):
    """GHSA-mm38-5g96-7j6x, GHSA-hgg8-fqqc-vfmw"""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(media, "MOST_PIXELS", 10_000)
    for side, refused in ((100, False), (101, True)):
        buffer = BytesIO()
        Image.new("RGB", (side, side)).save(buffer, "PNG")
        if refused:
            with pytest.raises(VLLMValidationError, match="VLLM_MAX_IMAGE_PIXELS"):
                ImageMediaIO().load_bytes(buffer.getvalue())
        else:
            ImageMediaIO().load_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="Failed to load image") as error:
        ImageMediaIO().load_bytes(b"no image")
    assert "0x" not in str(error.value)


@pytest.mark.parametrize("says", [True, False])
def test_no_more_of_a_download_is_read_than_the_limit(monkeypatch, says):
    """GHSA-p6g9-7v3x-m8mv"""
    monkeypatch.setattr(media, "MOST_DOWNLOAD_MB", 1)
    size = 1 << 20

    async def serve(request):
        answer = web.StreamResponse()
        wanted = size + int(request.query["more"])
        if says:
            answer.content_length = wanted
        await answer.prepare(request)
        await answer.write(b"x" * wanted)
        return answer

    async def ask():
        app = web.Application()
        app.router.add_get("/", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        connection = HTTPConnection(reuse_client=False)
        try:
            url = f"http://{host}:{port}/?more="
            assert len(await connection.async_get_bytes(f"{url}0")) == size
            with pytest.raises(VLLMValidationError, match="DOWNLOAD_SIZE_MB"):
                await connection.async_get_bytes(f"{url}1")
        finally:
            await connection._async_client.close()
            await runner.cleanup()

    asyncio.run(ask())


def test_a_clip_of_audio_has_the_size_of_an_upload_at_most():
    """GHSA-jcq2-4gch-5qhf"""
    with pytest.raises(VLLMValidationError, match="CLIP_FILESIZE_MB"):
        AudioMediaIO().load_bytes(b"x" * (25 * 2**20 + 1))


@pytest.mark.parametrize("decoder", ["soundfile", "av"])
def test_no_more_audio_is_decoded_than_the_limits(monkeypatch, decoder):
    """GHSA-6pr9-rp53-2pmc, GHSA-99f2-hwrc-gvq8"""
    buffer = BytesIO()
    soundfile.write(buffer, [0.0] * 24_000, 8_000, format="FLAC")

    def load():
        buffer.seek(0)
        if decoder == "av":
            return load_audio_pyav(buffer, sr=None)
        return AudioMediaIO().load_bytes(buffer.getvalue())

    assert len(load()[0]) == 24_000
    for name, most in (("MOST_SECONDS", 2), ("MOST_AUDIO", 24_000 * 4 - 1)):
        with monkeypatch.context() as patched:
            patched.setattr(media, name, most)
            with pytest.raises(VLLMValidationError, match="VLLM_MAX_AUDIO_DECODE"):
                load()


def test_an_upload_is_refused_before_it_is_read():
    """GHSA-v82g-2437-67m2"""
    from vllm.entrypoints.speech_to_text.transcription import api_router

    file = SimpleNamespace(size=26 << 20)  # without a method to read it
    app = SimpleNamespace(state=SimpleNamespace(openai_serving_transcription=object()))
    raw = SimpleNamespace(app=app)
    create = api_router.create_transcriptions
    while hasattr(create, "__wrapped__"):
        create = create.__wrapped__
    with pytest.raises(VLLMValidationError, match="CLIP_FILESIZE_MB"):
        asyncio.run(create(raw, SimpleNamespace(file=file)))


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){2,5}c", 11),
        ("((a{2}){3}){4}", 24),
        (r"\p{L}{2}", 40),
        (r"[^\]{9}]{4}", 4),
        ("a{,7}", 7),
        ("a{99999999999}", 10**9),
        ("(((({2}", 0),
        ("a|b*c{2}", 4),
        ("{2}", 0),
    ],
)
def test_what_a_regular_expression_unrolls_to(pattern, states):
    assert grammars.regex_states(pattern) == states


def test_a_schema_of_many_levels_is_measured_without_recursion():
    deep = {"type": "string"}
    for _ in range(5_000):
        deep = {"items": deep}
    StructuredOutputsParams(json=deep)
    StructuredOutputsParams(json=json.dumps({"type": "string", "maxLength": 20_000}))
    with pytest.raises(ValueError, match="VLLM_MAX_GRAMMAR_STATES"):
        StructuredOutputsParams(json={"items": {"maxLength": 200}, "maxItems": 101})
