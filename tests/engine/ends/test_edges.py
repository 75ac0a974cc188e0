"""What a program that has an engine, or starts a server its own way, may rely on.

With balance off, too: then nothing of ours may be noticed.
"""

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager, suppress

import psutil
import pytest
import requests
import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.fixes import server_end
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.sched.balance.front.front_end import PROMPTS_KNOWN, PromptHasher
from vllm.v1.core.sched.balance.rank import watch
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM

from vllm_server import START_S, ServeProcess, Server, direct, free_port

STRANGE = 99_999
"""An id that ends an answer and for which the model has no token."""


async def _ask(llm):
    sampling = SamplingParams(max_tokens=4, min_tokens=3)
    prompt = {"prompt_token_ids": [5, 6]}
    answers = [each async for each in llm.generate(prompt, sampling, "one")]
    return len(answers[-1].outputs[0].token_ids)


async def _drop_an_engine(model):
    """Answer tokens of a request, and the processes that live once it is dropped."""
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model),
            max_model_len=64,
            enforce_eager=True,
            skip_tokenizer_init=True,
        )
    )
    dropped, tokens = weakref.ref(llm), await _ask(llm)
    engines = [each.pid for each in llm.engine_core.resources.engine_manager.processes]
    assert all(map(psutil.pid_exists, engines))
    del llm
    for _ in range(40):
        await asyncio.sleep(0.25)
        gc.collect()
        if dropped() is None:
            break
    return tokens, dropped() is not None, [p for p in engines if psutil.pid_exists(p)]


def test_an_engine_that_a_program_drops_ends_and_odd_ends_of_answers_end_nobody(
    dense_model, tmp_path
):
    """In a loop of a thread, as programs with one of their own have it."""
    model = shutil.copytree(dense_model, tmp_path / "model")
    ends = {"eos_token_id": [0, STRANGE]}
    (model / "generation_config.json").write_text(json.dumps(ends))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(asyncio.run(_drop_an_engine(model)))
    )
    thread.start()
    thread.join()
    ((tokens, is_kept, left),) = found
    assert tokens >= 3
    assert not is_kept
    assert not left


def test_what_ends_the_watch_of_a_server_is_told(monkeypatch):
    """An error in it would else be told when the task is forgotten."""
    said = []
    monkeypatch.setattr(
        server_end.logger, "error", lambda *words, **more: said.append(more)
    )

    monkeypatch.setattr(server_end, "_is_command", lambda: True)

    class Broken:
        vllm_config = None

    async def watched(llm):
        server_end.end_with_engines(llm)
        await asyncio.sleep(0.01)

    asyncio.run(watched(Broken()))
    assert [type(more["exc_info"]) for more in said] == [AttributeError]


def test_a_full_disk_of_the_status_file_ends_no_watch(monkeypatch):
    """The same thread ends ranks that wait in vain."""
    asked = threading.Semaphore(0)

    def full(*_):
        asked.release()
        raise OSError("no space")

    monkeypatch.setattr(watch.os, "pwrite", full)
    watch.RankWatch(timeout=1.0).start()
    assert all(asked.acquire(timeout=60) for _ in range(3))


def test_a_front_end_keeps_no_images():
    hasher, kept = PromptHasher(16), []
    for number in range(1000):
        pixels = torch.zeros(8)
        image = MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=f"{number}",
            mm_position=PlaceholderRange(offset=0, length=600, is_embed=pixels),
        )
        request = EngineCoreRequest(
            request_id=f"{number}",
            prompt_token_ids=[1] * 600,
            mm_features=[image],
            sampling_params=SamplingParams(),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        keys = hasher.keys(request)
        assert keys
        assert hasher.keys(request) is keys, "several answers to one prompt"
        kept += [weakref.ref(pixels), weakref.ref(image)]
        del pixels, image, request
    gc.collect()
    assert not [each for each in kept if each() is not None]
    assert len(hasher._known) == PROMPTS_KNOWN


_WRAPPER = """
import multiprocessing, os, sys

def serve(port, *arguments):
    sys.argv = ["vllm", "serve", *arguments, "--port", port]
    from vllm.entrypoints.cli.main import main
    main()

def daemon(*arguments):
    if os.fork() == 0:
        serve(*arguments)

if __name__ == "__main__":
    first, second, *arguments = sys.argv[1:]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vllm.entrypoints.cli.main"])
    children = [
        context.Process(target=serve, args=(first, *arguments)),
        context.Process(target=daemon, args=(second, *arguments)),
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


def test_a_server_may_be_started_by_a_fork_server_or_by_a_daemon(dense_model, tmp_path):
    """Neither is the child of the process that `multiprocessing` says it is of."""
    ports = [str(free_port()) for _ in range(2)]
    with _running(_WRAPPER, tmp_path, *ports, str(dense_model)) as (wrapper, log):
        _wait_for(wrapper, ports, log)
        assert "Ending the server" not in log.read_text()


_PROGRAM = """
import asyncio, sys
from vllm.entrypoints.openai.api_server import run_server
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

async def main():
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    await run_server(arguments)
    await asyncio.sleep(5)
    print("all put away", flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    "end", ["the program", pytest.param("the engine", marks=pytest.mark.slow)]
)
def test_a_program_with_a_server_in_its_own_loop_goes_on_when_that_ends(
    end, dense_model, tmp_path
):
    port = str(free_port())
    arguments = ("--model", str(dense_model), "--port", port)
    with _running(_PROGRAM, tmp_path, *arguments) as (program, log):
        _wait_for(program, [port], log)
        if end == "the program":
            program.terminate()
        else:
            for child in psutil.Process(program.pid).children():
                child.kill()
        assert program.wait(START_S) == 0, log.read_text()
        assert "all put away" in log.read_text()


@contextmanager
def _running(program, folder, *arguments):
    """A program that serves, and its log; in the end nothing of it is left."""
    (folder / "program.py").write_text(program)
    options = ("--host", "127.0.0.1", "--max-model-len", "64", "--enforce-eager")
    log = folder / "log"
    with log.open("wb") as written:
        started = subprocess.Popen(
            [sys.executable, "program.py", *arguments, *options],
            cwd=folder,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield started, log
    finally:
        _end_group(started)


def _wait_for(program, ports, log):
    """Until all ports answer."""
    waiting, deadline = set(ports), time.monotonic() + START_S
    while waiting and time.monotonic() < deadline and program.poll() is None:
        for port in [*waiting]:
            with suppress(requests.RequestException):
                if direct("GET", f"http://127.0.0.1:{port}/health", timeout=5).ok:
                    waiting.remove(port)
        time.sleep(0.5)
    assert not waiting, log.read_text()


def _end_group(first):
    group = [each for each in psutil.process_iter() if _group_of(each.pid) == first.pid]
    for each in group:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(group, timeout=60)
    first.wait()


def _group_of(pid):
    with suppress(ProcessLookupError):
        return os.getpgid(pid)


TIMEOUT_S = 20


@pytest.mark.parametrize(
    ("policy", "end"),
    [("adaptive", psutil.Process.kill), ("off", psutil.Process.suspend)],
    ids=["killed", "silent"],
)
def test_a_front_end_without_ranks_ends_with_a_host_of_ranks(
    moe_model, tmp_path, policy, end
):
    """Nobody else is left there to notice; what restarts processes starts it again.

    Who is suspended answers as little as a host that is cut off.
    """
    rpc_port = free_port()
    common = (
        "--data-parallel-size",
        "2",
        "--data-parallel-address",
        "127.0.0.1",
        "--data-parallel-rpc-port",
        str(rpc_port),
        "--max-model-len",
        "256",
        "--data-parallel-balance",
        policy,
    )
    environment = {
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_S),
    }
    host = ServeProcess(
        tmp_path,
        "host",
        moe_model,
        *common,
        "--headless",
        "--data-parallel-size-local",
        "2",
        environment=environment,
    )
    host.start()
    server = Server(
        tmp_path,
        moe_model,
        *common,
        "--data-parallel-size-local",
        "0",
        "--api-server-count",
        "2" if policy == "off" else "1",
        environment=environment,
    )
    server.__enter__()
    try:
        assert server.ask(0, prompt=[5, 6], max_tokens=2).ok
        processes = host.processes()
        for process in processes:  # or one could still say that another has ended
            process.suspend()
        for process in processes:
            end(process)
        assert server.wait(3 * TIMEOUT_S) == 1
        assert "of the engines, all on other hosts" in server.log.read_text()
    except BaseException:
        server.print_log_tail()
        raise
    finally:
        host.kill()
        server.kill()
