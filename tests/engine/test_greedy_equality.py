"""Over HTTP, the engine writes what Hugging Face writes, in every way it can be run."""

import os
import re

import openai
import psutil
import pytest
from vllm.distributed import utils

from hugging_face import NEW_TOKENS, Sample
from vllm_server import Server

CAP = ("--data-parallel-balance", "cap", "--max-num-seqs", "2")  # so that ranks fill up
BOUND = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def assert_equal(
    server: Server, expected: list[Sample], concurrency: int, spread: int = 13
) -> None:
    """Every prompt gets these tokens; of equal lengths, ranks would never be held."""
    lengths = [NEW_TOKENS - i % spread for i in range(len(expected))]
    got = server.complete([s.prompt for s in expected], lengths, concurrency)
    different = [
        f"prompt of {len(sample.prompt)} tokens: {list(sample.tokens[:length])} "
        f"expected, {tokens} found"
        for sample, length, tokens in zip(expected, lengths, got, strict=True)
        if tokens != list(sample.tokens[:length])
    ]
    assert not different, f"concurrency {concurrency}:\n" + "\n".join(different)


def assert_the_gate_decided(server: Server, ranks: int, holds: bool = True) -> None:
    """On every rank; and held, but with `adaptive`, by the times of a tiny model."""
    decisions, held, lengths, exchanges = server.settled_metrics(
        "vllm:dp_balance_decisions_total",
        "vllm:dp_balance_held_steps_total",
        "vllm:dp_balance_hold_length_steps_count",
        "vllm:dp_balance_exchange_seconds_count",
    )
    assert sorted(decisions) == list(range(ranks))
    assert min(decisions.values()) > 0
    assert exchanges == decisions
    assert (sum(held.values()) > 0 and sum(lengths.values()) > 0) or not holds


def assert_all_served(server: Server, ranks: int) -> None:
    served = server.metric("vllm:request_success_total")
    assert sorted(served) == list(range(ranks))
    assert min(served.values()) > 0, f"a rank served nothing: {served}"


@pytest.mark.slow
def test_four_ranks_in_step(moe_model, moe_samples, tmp_path):
    """Synchronous, with expert parallelism; it listens as docs/deployment.md says."""
    options = ("-dp", "4", "--enable-expert-parallel", "--no-async-scheduling", *CAP)
    with Server(tmp_path, moe_model, *options, environment=BOUND) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert_the_gate_decided(server, 4)
        assert server.post("/reset_prefix_cache").status_code == 200
        assert_equal(server, moe_samples, concurrency=8)
        assert_equal(server, moe_samples, concurrency=1)  # prefixes cached by now
        assert_all_served(server, 4)
        assert sum(server.metric("vllm:prefix_cache_hits_total").values()) > 0
        sockets = listening(server)
        public = [socket for socket in sockets if socket[0] != "127.0.0.1"]
        owners = [psutil.Process(pid).cmdline()[0] for _, _, pid in public]
    log = server.log.read_text()
    assert "Local/global number of experts: 2/8" in log
    assert "'async_scheduling': False" in log
    # The stores alone; both are rank 0's until 0.30, on 0.33 one is rank 1's.
    assert {address for address, _, _ in public} <= {"::", "0.0.0.0"}
    others = [owner for owner in owners if owner != "VLLM::EngineCore_DP0"]
    assert len(owners) == 2
    assert others in ([], ["VLLM::EngineCore_DP1"] * hasattr(utils, "cpu_all_reduce_"))
    assert len(sockets) > 10  # gloo's, on the loopback interface


def listening(server: Server) -> list[tuple[str, int, int]]:
    """(address, port, process id) of every socket that the server listens on."""
    sockets = [
        (*connection.laddr, connection.pid)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid
    ]
    (group,) = {group_of(pid) for _, port, pid in sockets if port == server.port}
    return [socket for socket in sockets if group_of(socket[2]) == group]


def group_of(process_id: int) -> int | None:
    try:
        return os.getpgid(process_id)
    except ProcessLookupError:  # another program, gone meanwhile
        return None


def test_tensor_parallel(moe_model, moe_samples, tmp_path):
    with Server(tmp_path, moe_model, "-tp", "2") as server:
        assert_equal(server, moe_samples, concurrency=8)


@pytest.mark.slow
def test_dense_model_chat_and_structured_output_in_a_spawned_worker(
    dense_model, dense_samples, tmp_path
):
    spawn = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    options = ("--distributed-executor-backend", "mp", "--no-async-scheduling")
    with Server(tmp_path, dense_model, *options, environment=spawn) as server:
        assert_equal(server, dense_samples, concurrency=8)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

        def ask(**structured: object) -> str:
            answer = client.chat.completions.create(
                model=str(dense_model),
                messages=[{"role": "user", "content": "Do you agree?"}],
                max_tokens=16,
                temperature=0,
                extra_body={"structured_outputs": structured} if structured else {},
            )
            return answer.choices[0].message.content or ""

        free = ask()
        assert free
        assert not re.fullmatch("yes|no", free)
        assert ask(choice=["yes", "no"]) in ("yes", "no")
        assert re.fullmatch("[ab]{6}c", ask(regex="[ab]{6}c"))
    assert "(Worker pid=" in server.log.read_text()
