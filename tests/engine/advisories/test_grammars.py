"""What `vllm.fixes.grammars` bounds: bytes, memory and seconds of what a request asks.

Everything here is harmless to a compiler: a limit is lowered, or a compiler is slowed.
"""

import asyncio
import json
import time

import pytest
from vllm.fixes import grammars
from vllm.fixes.client_checks import FailedGrammar
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.input_processor import InputProcessor

from constrained import BACKENDS, compiled, constrained, with_backend
from schedulers import make_scheduler

WORDS = [f"c{i:07d}" for i in range(2_000)]
LONG = {"enum": WORDS}
TAG = json.dumps({"structures": [], "triggers": []})
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


@pytest.fixture
def processor(moe_model):
    processor = InputProcessor(with_backend(moe_model, "auto"))
    yield processor
    trial = getattr(processor, "balance_trial", None)
    if trial is not None and trial.process is not None:
        trial.process.stdin.close()
        assert trial.process.wait(60) == 0, "it ends with who began it"


def checked(processor, **constraint):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    asyncio.run(grammars.check_beside(processor, params))
    return params.structured_outputs


def test_what_a_trial_does_not_survive_is_refused(processor, monkeypatch):
    """GHSA-rwxx-mrjm-wc2m: the next one has a trial of its own."""
    with monkeypatch.context() as stopped:
        begins = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps('ready'))"
        stopped.setattr(grammars, "_PROGRAM", ("-c", begins))
        with pytest.raises(ValueError, match=r"30 s.*GRAMMAR_COMPILATION_TIMEOUT_S"):
            checked(processor, json=LONG)
    assert grammars.was_checked(checked(processor, json=LONG))


def test_what_cannot_be_tried_is_checked_as_by_upstream(processor, monkeypatch):
    monkeypatch.setattr(grammars, "_PROGRAM", ("-c", ""))
    assert not grammars.was_checked(checked(processor, json=LONG))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trial_says_what_upstream_does(moe_model, backend):
    config = with_backend(moe_model, backend)
    trial = grammars._Trial(config.model_config, config.structured_outputs_config)
    for constraint in (
        {"json": LONG},
        {"regex": "[ab]c"},
        {"choice": ["a"]},
        {"structural_tag": TAG},
    ):
        told = trial.ask(StructuredOutputsParams(**constraint), 60)
        try:
            expected = vars(constrained(config, **constraint).structured_outputs)
        except ValueError as error:
            expected = str(error)
        assert told == expected
    assert isinstance(trial.ask(StructuredOutputsParams(regex="("), 60), str)
    trial.process.stdin.close()
    assert trial.process.wait(60) == 0


def test_a_trial_has_limited_time_and_memory(moe_model, monkeypatch):
    """What compiles is made slow, then large, in the process itself."""
    config = with_backend(moe_model, "auto")
    slowed = """
import time
from vllm.fixes import trial
def compile_for_bytes(constraint):
    what, _, count = constraint.regex.partition("=")
    if what == "size":
        bytes(int(count))
    else:
        while time.process_time() < int(count):
            pass
trial.compile_for_bytes = compile_for_bytes
trial.main()
"""
    monkeypatch.setattr(grammars, "_PROGRAM", ("-c", slowed))
    monkeypatch.setattr(grammars, "TRIAL_BYTES", 1 << 28)
    trial = grammars._Trial(config.model_config, config.structured_outputs_config)

    def ask(regex, seconds):
        return trial.ask(StructuredOutputsParams(regex=regex), seconds)

    assert ask("time=0", 60) is not None
    assert ask("size=1000", 60) is not None
    assert ask("size=1000000000", 60) is None
    assert trial.process is None
    assert ask("time=600", 1) is None


@pytest.mark.parametrize(
    "constraint", [{"choice": WORDS}, {"json": {"type": "string", "pattern": "a{2}"}}]
)
def test_what_may_be_large_is_checked_once_and_beside_the_event_loop(
    processor, monkeypatch, constraint
):
    with monkeypatch.context() as here:
        here.setattr(SamplingParams, "verify", None)
        found = checked(processor, **constraint)
    assert grammars.was_checked(found)
    assert found._backend == "xgrammar"
    if "choice" in constraint:
        assert found.grammar.startswith("root ::= ")


def test_what_is_small_is_checked_by_upstream(processor):
    for constraint in ({"json": {"maxLength": 1000}}, {"regex": "a+"}):
        assert not grammars.was_checked(checked(processor, **constraint))
    assert not hasattr(processor, "balance_trial")
