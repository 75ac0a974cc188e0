"""What a program that has an engine, or starts a server its own way, may rely on.

With balance off, too: then nothing of ours may be noticed.
"""

import asyncio
import gc
import json
import shutil
import sys
import threading
import time
import weakref

import psutil
import pytest
import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.fixes import server_end
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.sched.balance.front.front_end import PROMPTS_KNOWN, PromptHasher
from vllm.v1.core.sched.balance.rank import watch
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM

from vllm_server import START_S, STOP_S, ServeProcess, Server, free_port, is_alive

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
    for number in range(3 * PROMPTS_KNOWN):
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


class Program(Server):
    """One that a program starts in a way of its own."""

    def __init__(self, folder, text, model, *options):
        small = ("--max-model-len", "64", "--enforce-eager")
        super().__init__(folder, model, *small, *options)
        (folder / "program.py").write_text(text)
        arguments = self._command[self._command.index("serve") + 1 :]
        self._command = [sys.executable, "program.py", *arguments]


_DAEMON = """
import multiprocessing, os, signal, sys

def daemon(*arguments):
    if os.fork() == 0:
        with open("pid", "w") as file:
            print(os.getpid(), file=file)
        sys.argv = ["vllm", "serve", *arguments]
        from vllm.entrypoints.cli.main import main
        main()

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=daemon, args=sys.argv[1:])
    child.start()
    child.join()
    signal.pause()
"""


def test_a_daemon_serves_until_it_is_killed_and_its_ranks_end_with_it(
    dense_model, tmp_path
):
    """It is no child of the process that `multiprocessing` says it is of.

    Its ranks are of a dense model, with balance off, so that no group would tell them.
    """
    with Program(tmp_path, _DAEMON, dense_model, "-dp", "2") as server:
        time.sleep(4 * server_end._PERIOD_S)
        assert "Ending the server" not in server.log.read_text()
        first = psutil.Process(int((tmp_path / "pid").read_text()))
        processes = [first, *first.children(recursive=True)]
        assert len(processes) >= 3
        first.kill()
        _, left = psutil.wait_procs(processes, timeout=STOP_S)
        assert not [each for each in left if is_alive(each.pid)]


_PROGRAM = """
import asyncio
from vllm.entrypoints.openai.api_server import run_server
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

async def main():
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    arguments.model = arguments.model_tag
    await run_server(arguments)
    await asyncio.sleep(5)
    print("all put away", flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "end", [pytest.param("the program", marks=pytest.mark.ci), "the engine"]
)
def test_a_program_with_a_server_in_its_own_loop_goes_on_when_that_ends(
    end, dense_model, tmp_path
):
    with Program(tmp_path, _PROGRAM, dense_model) as server:
        if end == "the program":
            server._process.terminate()
        else:
            for child in psutil.Process(server._process.pid).children():
                child.kill()
        assert server.wait(START_S) == 0
        assert "all put away" in server.log.read_text()


TIMEOUT_S = 8


def test_a_front_end_without_ranks_ends_with_a_host_of_ranks(moe_model, tmp_path):
    """Nobody else is left there to notice; what restarts processes starts it again.

    Who is suspended answers as little as a host that is cut off.
    """
    common = ("-dp", "2", "--data-parallel-address", "127.0.0.1")
    common += ("--data-parallel-rpc-port", str(free_port()), "--max-model-len", "256")
    environment = {
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_S),
    }
    headless = ("--headless", "--data-parallel-size-local", "2")
    host = ServeProcess(
        tmp_path,
        "host",
        moe_model,
        *common,
        *headless,
        environment=environment,
        forked=True,
    )
    host.start()
    server = Server(
        tmp_path,
        moe_model,
        *common,
        "--data-parallel-size-local",
        "0",
        environment=environment,
        forked=True,
    )
    server.__enter__()
    try:
        assert server.ask(0, prompt=[5, 6], max_tokens=2).ok
        for process in host.processes():
            process.suspend()
        assert server.wait(STOP_S) == 1
        assert "of the engines, all on other hosts" in server.log.read_text()
    except BaseException:
        server.print_log_tail()
        raise
    finally:
        host.kill()
        server.kill()
