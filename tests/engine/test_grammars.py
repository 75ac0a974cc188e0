"""What `vllm.fixes.grammars` bounds: bytes, memory and seconds of what a request asks.

Everything here is harmless to a compiler: a limit is lowered, or a compiler is slowed.
"""

import asyncio
import json
import time

import pytest
from vllm.fixes import grammars
from vllm.fixes.survival import FailedGrammar
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.input_processor import InputProcessor

from constrained import BACKENDS, compiled, with_backend
from schedulers import make_scheduler

WORDS = [f"c{i:07d}" for i in range(2_000)]
LONG = {"enum": WORDS}
"""More than `SMALL` characters."""
UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
LINE = {"sku": {"type": "string", "maxLength": 32}, "count": {"type": "integer"}}
ORDER = {"lines": {"type": "array", "maxItems": 20, "items": {"properties": LINE}}}
NUMBERS = {"type": "array", "maxItems": 200, "items": {"type": "number"}}
SERVED = {
    "a long text": {"type": "string", "maxLength": 32_768},
    "200 x 200 numbers": {"type": "array", "maxItems": 200, "items": NUMBERS},
    "1,000 UUIDs": {"type": "array", "maxItems": 1_000, "items": {"pattern": UUID}},
    "100 orders": {"type": "array", "maxItems": 100, "items": {"properties": ORDER}},
    "ten long fields": {
        "properties": {
            f"f{i}": {"type": "string", "maxLength": 4_000} for i in range(10)
        }
    },
    "2,000 words": LONG,
}
"""What a count of what repetitions unroll to refused."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_compiles_what_it_did(moe_model, backend):
    config = with_backend(moe_model, backend)
    _, grammar = compiled(make_scheduler(config), config, regex="[ab]c")
    assert not isinstance(grammar, FailedGrammar)
    assert not grammar.is_terminated()


@pytest.mark.parametrize("name", SERVED)
def test_a_schema_that_repeats_often_is_compiled(moe_model, name):
    config = with_backend(moe_model, "xgrammar")
    _, grammar = compiled(make_scheduler(config), config, json=SERVED[name])
    assert not isinstance(grammar, FailedGrammar)


def test_a_constraint_of_too_many_bytes_is_refused_with_the_limit(monkeypatch):
    monkeypatch.setattr(grammars, "MOST_BYTES", 1_000)
    fine, long = (["a" * 100] * count for count in (9, 10))
    for name, form in (("json", lambda of: {"enum": of}), ("choice", list)):
        StructuredOutputsParams(**{name: form(fine)})
        with pytest.raises(
            ValueError, match=f"{name} is too long.*1000.*GRAMMAR_BYTES"
        ):
            StructuredOutputsParams(**{name: form(long)})
    for name in ("regex", "grammar", "structural_tag"):
        StructuredOutputsParams(**{name: "a" * 990})
        with pytest.raises(ValueError, match=f"{name} is too long"):
            StructuredOutputsParams(**{name: "a" * 1_001})
    monkeypatch.setattr(grammars, "MOST_BYTES", 0)
    StructuredOutputsParams(json={"enum": long})


def test_a_schema_of_many_levels_is_measured_without_recursion():
    deep = {"type": "string"}
    for _ in range(5_000):
        deep = {"items": deep}
    StructuredOutputsParams(json=deep)


def test_choices_are_not_refused_for_the_grammar_that_upstream_makes_of_them(
    moe_model, monkeypatch
):
    monkeypatch.setattr(grammars, "MOST_BYTES", 12 * len(WORDS))
    config = with_backend(moe_model, "xgrammar")
    _, grammar = compiled(make_scheduler(config), config, choice=WORDS)
    assert not isinstance(grammar, FailedGrammar)


def test_a_compiler_that_takes_too_long_is_given_up(moe_model, monkeypatch):
    monkeypatch.setattr(grammars, "MOST_SECONDS", 1)
    config = with_backend(moe_model, "xgrammar")
    scheduler = make_scheduler(config)
    compiled(scheduler, config, regex="[ab]c")
    backend = scheduler.structured_output_manager.backend
    ends = asyncio.Event()

    def compile_grammar(*_, **__):
        while not ends.is_set():
            time.sleep(0.01)

    monkeypatch.setattr(backend, "compile_grammar", compile_grammar)
    _, grammar = compiled(scheduler, config, json={"type": "string"})
    assert isinstance(grammar, FailedGrammar)
    monkeypatch.undo()
    _, grammar = compiled(scheduler, config, json={"type": "string"})
    ends.set()
    assert not isinstance(grammar, FailedGrammar), "what is late holds one thread only"


@pytest.mark.parametrize(
    ("backend", "kind"), [("outlines", "regex"), ("xgrammar", "json")]
)
def test_what_a_trial_does_not_survive_is_given_up(
    moe_model, monkeypatch, backend, kind
):
    """GHSA-rwxx-mrjm-wc2m: the next one has a trial of its own."""
    monkeypatch.setattr(grammars, "MOST_SECONDS", 60)
    monkeypatch.setattr(grammars, "MOST_REGEX_SECONDS", 60)
    harmless = {"regex": "[ab]c", "json": LONG}[kind]
    config = with_backend(moe_model, backend)
    scheduler = make_scheduler(config)
    with monkeypatch.context() as slowed:
        stop = grammars._TRIAL.replace("ways.get(way, str)(text)", "os.abort()")
        slowed.setattr(grammars, "_TRIAL", stop)
        _, grammar = compiled(scheduler, config, **{kind: harmless})
        assert isinstance(grammar, FailedGrammar)
    _, grammar = compiled(scheduler, config, **{kind: harmless})
    assert not isinstance(grammar, FailedGrammar)


def test_a_trial_ends_in_its_seconds(monkeypatch):
    wait = grammars._TRIAL.replace("ways.get(way, str)(text)", "signal.pause()")
    monkeypatch.setattr(grammars, "_TRIAL", wait)
    trial = grammars._Trial()
    assert not trial.ends("xgrammar", "JSON", "{}", 1)
    assert trial.process is None


def test_a_trial_has_limited_memory(monkeypatch):
    fill = grammars._TRIAL.replace("ways.get(way, str)(text)", "bytes(64 << 20)")
    monkeypatch.setattr(grammars, "_TRIAL", fill)
    assert grammars._Trial().ends("xgrammar", "JSON", "{}", 60)
    monkeypatch.setattr(grammars, "TRIAL_BYTES", 1 << 20)
    assert not grammars._Trial().ends("xgrammar", "JSON", "{}", 60)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("xgrammar JSON", json.dumps(LONG)),
        ("xgrammar REGEX", "[ab]c"),
        ("xgrammar GRAMMAR", 'root ::= "a"'),
        ("xgrammar STRUCTURAL_TAG", '{"structures": [], "triggers": []}'),
        ("outlines JSON", json.dumps(LONG)),
        ("outlines REGEX", "[ab]c"),
        ("outlines REGEX", "what is no expression: ("),
        ("outlines CHOICE", "['a']"),
    ],
)
def test_a_trial_passes_what_compiles_or_is_refused(trial, way, text):
    assert trial.ends(*way.split(), text, 60)
    assert trial.process


@pytest.fixture(scope="module")
def trial():
    trial = grammars._Trial()
    yield trial
    process = trial.process
    process.stdin.close()
    assert process.wait(60) == 0, "it ends with who began it"


def test_a_large_constraint_is_checked_once_and_beside_the_event_loop(moe_model):
    config = with_backend(moe_model, "auto")
    processor = InputProcessor(config)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=WORDS))
    asyncio.run(grammars.check_beside(processor, params))
    assert grammars.was_checked(params.structured_outputs)
    assert params.structured_outputs.grammar.startswith("root ::= ")
    assert params.structured_outputs._backend == "xgrammar"


def test_a_check_that_takes_too_long_is_refused(moe_model, monkeypatch):
    monkeypatch.setattr(grammars, "MOST_SECONDS", 1)
    processor = InputProcessor(with_backend(moe_model, "auto"))
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=WORDS))
    ends = asyncio.Event()

    def verify(*_):
        while not ends.is_set():
            time.sleep(0.01)

    monkeypatch.setattr(SamplingParams, "verify", verify)

    async def checked():
        try:
            await grammars.check_beside(processor, params)
        finally:
            ends.set()

    with pytest.raises(ValueError, match="longer than 1 s"):
        asyncio.run(checked())
    assert not grammars.was_checked(params.structured_outputs)
