"""What `vllm.fixes.grammars` bounds: bytes, memory and seconds of what a request asks.

Everything here is harmless to a compiler: a limit is lowered, or a compiler is slowed.
"""

import asyncio
import contextlib
import copy
import json
import signal
import sys
import time

import psutil
import pytest
from vllm.fixes import client_checks, grammars
from vllm.fixes.grammars import FailedGrammar
from vllm.fixes.trial import compile_for_bytes
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.input_processor import InputProcessor

from constrained import BACKENDS, compiled, constrained, with_backend
from schedulers import make_scheduler

WORDS = [f"c{i:07d}" for i in range(2_000)]
LONG = {"enum": WORDS}
TAG = json.dumps({"structures": [], "triggers": []})
"""More than `SMALL` characters."""
SMALL = ({"json": {"type": "integer"}}, {"regex": "[ab]c"}, {"choice": ["a"]})
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


@pytest.fixture(scope="module")
def made(moe_model):
    return InputProcessor(with_backend(moe_model, "auto"))


@pytest.fixture
def processor(made, monkeypatch):
    monkeypatch.setattr(grammars, "WAIT_SECONDS", 500)  # of a busy machine
    processor = copy.copy(made)
    yield processor
    trial = getattr(processor, "balance_trial", None)
    if trial is not None and trial.process.poll() is None:
        trial.control.close()
        assert trial.process.wait(300) == 0, "it ends with who began it"


BEGINS = "import pickle, socket; c = socket.socket(fileno=0)"
GETS_ONE = "pickle.load(c.makefile('rb')); c.send(b'ready'); socket.recv_fds(c, 1, 1)"


def program(text):
    return (sys.executable, "-c", f"import sys; del sys.path[0]\n{text}")


def asked(trial, seconds=60, **constraint):
    """What a trial says; None if it did not survive."""
    return asyncio.run(trial.ask(StructuredOutputsParams(**constraint), seconds))


def checked(processor, **constraint):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    asyncio.run(grammars.check_beside(processor, params))
    return params.structured_outputs


def test_what_cannot_be_tried_is_checked_as_by_upstream(processor, monkeypatch):
    monkeypatch.setattr(grammars, "_PROGRAM", program(""))
    assert not grammars.was_checked(checked(processor, json=LONG))


@pytest.mark.parametrize("backend", ["xgrammar", "outlines"])  # of which it compiles
def test_a_trial_says_what_upstream_does(moe_model, backend):
    processor = InputProcessor(with_backend(moe_model, backend))
    trial = grammars._Trial(processor)
    for constraint in (
        {"json": LONG},
        *SMALL,
        {"structural_tag": TAG},
    ):
        told = asked(trial, **constraint)
        try:
            params = constrained(processor.vllm_config, **constraint)
            expected = vars(params.structured_outputs)
        except ValueError as error:
            expected = str(error)
        assert told == expected
    assert isinstance(asked(trial, regex="("), str)
    trial.control.close()
    assert trial.process.wait(300) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trial_compiles_what_ranks_do(moe_model, backend):
    config = with_backend(moe_model, backend)
    for constraint in SMALL:
        compile_for_bytes(constrained(config, **constraint).structured_outputs)


COMPILES = """
import os, time
from vllm.fixes import trial
def compile_for_bytes(constraint):
    what, _, count = constraint.regex.partition("=")
    if what == "size":
        bytes(int(count))
    if what == "file":
        open(count, "w").write(str(os.getpid()))
    seconds = {"time": count, "file": 99}.get(what, 0)
    while time.process_time() < int(seconds):
        pass
trial.compile_for_bytes = compile_for_bytes
trial.main()
"""
"""A trial in which it is a compiler that is slow, or large."""


@pytest.fixture(scope="module")
def kept():
    """The process of `slowed`, which takes long to begin."""
    kept = {}
    yield kept
    kept["control"].close()
    assert kept["process"].wait(300) == 0


@pytest.fixture
def slowed(made, kept, monkeypatch):
    """A processor with a trial of which that is so."""
    monkeypatch.setattr(grammars, "WAIT_SECONDS", 500)
    monkeypatch.setattr(grammars, "_PROGRAM", program(COMPILES))
    monkeypatch.setattr(grammars, "TRIAL_BYTES", 1 << 28)
    processor = copy.copy(made)
    trial = processor.balance_trial = grammars._Trial(processor)
    vars(trial).update(kept)
    yield processor
    kept.update(process=trial.process, control=trial.control)


def test_what_a_trial_does_not_survive_is_refused(slowed, monkeypatch):
    """GHSA-rwxx-mrjm-wc2m: the next one has a trial of its own."""
    trial = slowed.balance_trial
    trial.process = None
    with monkeypatch.context() as stopped:
        stopped.setattr(grammars, "_PROGRAM", program(f"{BEGINS}; {GETS_ONE}"))
        with pytest.raises(ValueError, match=r"30 s.*GRAMMAR_COMPILATION_TIMEOUT_S"):
            checked(slowed, json=LONG)
    trial.process.wait(60)
    assert grammars.was_checked(checked(slowed, json=LONG))


def test_a_trial_has_limited_time_and_memory(slowed):
    trial = slowed.balance_trial
    assert asked(trial, regex="time=0") is not None
    first = trial.process
    assert asked(trial, regex="size=1000") is not None
    assert asked(trial, regex="size=1000000000") is None
    assert asked(trial, 1, regex="time=600") is None
    assert asked(trial, regex="time=0") is not None
    assert trial.process is first, "the next one need not wait for a new process"


def test_a_trial_ends_with_who_asked(slowed, tmp_path):
    """And makes room for the next, which else would wait for what nobody wants."""
    files = [tmp_path / str(i) for i in range(2 * grammars.TRIALS)]
    assert asked(slowed.balance_trial, regex="time=0") is not None

    async def hang_up():
        for file in files:
            constraint = StructuredOutputsParams(regex=f"file={file}")
            asking = asyncio.create_task(slowed.balance_trial.ask(constraint, 90))
            while not file.exists() or not file.read_text():
                await asyncio.sleep(0.01)
            asking.cancel()

    asyncio.run(asyncio.wait_for(hang_up(), 60))
    for file in files:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int(file.read_text())).wait(30)


def test_who_waits_too_long_for_others_is_told_so(slowed, monkeypatch):
    trial = slowed.balance_trial
    assert asked(trial, regex="time=0") is not None
    monkeypatch.setattr(grammars, "WAIT_SECONDS", 1)
    monkeypatch.setattr(grammars, "MOST_SECONDS", 1)

    async def ask_beside_others():
        slow = StructuredOutputsParams(regex="time=90")
        others = [
            asyncio.create_task(trial.ask(slow, 90)) for _ in range(grammars.TRIALS)
        ]
        await asyncio.sleep(0)
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=LONG))
        with pytest.raises(ValueError, match="within 2 s"):
            await grammars.check_beside(slowed, params)
        for other in others:
            other.cancel()

    asyncio.run(ask_beside_others())


def test_who_asks_and_goes_all_the_time_passes_no_check(slowed):
    """And a process that was killed begins anew."""
    trial = slowed.balance_trial
    assert asked(trial, regex="time=0") is not None
    trial.process.send_signal(signal.SIGSTOP)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=LONG))

    async def ask_and_go():
        for _ in range(5_000):
            asking = asyncio.create_task(grammars.check_beside(slowed, params))
            for _ in range(5):
                await asyncio.sleep(0)
            if asking.done():
                await asking
            asking.cancel()
            await asyncio.wait([asking])

    try:
        with pytest.raises(ValueError, match="too many large structured_outputs"):
            asyncio.run(ask_and_go())
    finally:
        trial.process.kill()
        trial.process.wait(60)
    assert asked(trial, regex="time=0") is not None


def test_a_trial_that_does_not_begin_is_given_up(processor, monkeypatch):
    monkeypatch.setattr(grammars, "WAIT_SECONDS", 1)
    monkeypatch.setattr(grammars, "MOST_SECONDS", 1)
    with monkeypatch.context() as stopped:
        stopped.setattr(grammars, "_PROGRAM", program("import time; time.sleep(90)"))
        with pytest.raises(ValueError, match="within 2 s"):
            checked(processor, json=LONG)
    assert processor.balance_trial.process.wait(30) < 0


def test_what_may_be_large_is_checked_once_and_beside_the_event_loop(
    processor, monkeypatch
):
    for constraint in (
        {"choice": WORDS},
        {"json": {"type": "string", "pattern": "a{2}"}},
    ):
        with monkeypatch.context() as here:
            here.setattr(SamplingParams, "verify", None)
            found = checked(processor, **constraint)
            here.setattr(client_checks, "_levels", None)
            again = SamplingParams(structured_outputs=found)
            client_checks.check_client(again, processor.model_config)
        assert grammars.was_checked(found)
        assert found._backend == "xgrammar"
        if "choice" in constraint:
            assert found.grammar.startswith("root ::= ")


def test_what_is_small_is_checked_by_upstream(processor):
    for constraint in ({"json": {"maxLength": 1000}}, {"regex": "a+"}):
        assert not grammars.was_checked(checked(processor, **constraint))
    assert not hasattr(processor, "balance_trial")
