"""A host with the API servers alone: all ranks are on another one, which is cut off."""

import pytest

from deployment import HTTP_PORT, OPTIONS, RANKS, RPC_PORT, TIMEOUT_S, environment
from netns import network
from vllm_server import ServeProcess, Server

END_S = 120


@pytest.mark.parametrize("policy", ["cap", "off"])
def test_the_front_end_ends_when_its_ranks_are_cut_off(moe_model, tmp_path, policy):
    """No packet tells it; a short cut delays and nothing else."""
    with network(2) as (first, second):
        common = (
            *("--data-parallel-size", str(RANKS)),
            *("--data-parallel-address", first.address),
            *("--data-parallel-rpc-port", str(RPC_PORT)),
            *OPTIONS,
            *("--data-parallel-balance", policy),
        )
        ranks = ServeProcess(
            *(tmp_path, "ranks", moe_model, *common),
            *("--headless", "--data-parallel-size-local", str(RANKS)),
            environment=environment(second),
            enter=second.enter,
        )
        server = Server(
            *(tmp_path, moe_model, *common, "--data-parallel-size-local", "0"),
            environment=environment(first),
            address=first.address,
            port=HTTP_PORT,
            enter=first.enter,
        )
        ranks.start()
        try:
            server.__enter__()
            second.cut()
            second.join()
            assert server.ask(1, prompt=[5, 6], max_tokens=2).ok
            second.cut()
            assert server.wait(END_S) == 1, f"{TIMEOUT_S} s are over"
            assert "do not answer. Ending" in server.log.read_text()
        except BaseException:
            server.print_log_tail()
            raise
        finally:
            server.kill()
            ranks.kill()
