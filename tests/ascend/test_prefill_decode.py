"""A prefill and a decode instance of the plugin, with its Mooncake connector.

Mooncake's transfer engine is emulated: it reads the other process's memory.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from conftest import PROGRAM_S
from test_flags import EAGER, IN_GRAPHS, OPTIONS
from test_greedy_equality import assert_the_gate_decided
from test_serving import ENVIRONMENT, ONE_PROCESS, _patience  # noqa: F401
from vllm_server import Server, free_port

RANKS = 2
SIZES = {"tp_size": 1, "dp_size": RANKS}
MTP = (
    "--speculative-config",
    json.dumps({"method": "mtp", "num_speculative_tokens": 3}),
)
TO_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a router tells the prefill instance; its answer says where the KV cache is."""


@contextmanager
def instances(
    folder: Path, model: Path, decode_options: tuple[str, ...], draft: tuple[str, ...]
) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = []
        roles = {"kv_producer": EAGER, "kv_consumer": decode_options}
        for number, (role, own) in enumerate(roles.items()):
            connector = {
                "kv_connector": "MooncakeConnectorV1",
                "kv_role": role,
                "kv_port": free_port(),
                "engine_id": str(number),
                "kv_connector_extra_config": {"prefill": SIZES, "decode": SIZES},
            }
            options = [*OPTIONS, *ONE_PROCESS, *own, *draft]
            options += ["--kv-transfer-config", json.dumps(connector)]
            environment = {**ENVIRONMENT, "VLLM_HOST_IP": "127.0.0.1"}
            server = Server(folder, model, *options, environment=environment, name=role)
            servers.append(stack.enter_context(server))
        yield servers


@pytest.mark.slow
@pytest.mark.timeout(3 * PROGRAM_S)
@pytest.mark.parametrize(
    ("name", "decode_options", "draft"),
    [("moe", EAGER, ()), ("deepseek", IN_GRAPHS, MTP)],
)
def test_what_was_computed_elsewhere_is_decoded(
    name, decode_options, draft, models, tmp_path
):
    model, samples = models(name)
    with instances(tmp_path, model, decode_options, draft) as (prefill, decode):

        def answer(sample):
            body = {"prompt": list(sample.prompt), "max_tokens": 1, "temperature": 0}
            response = prefill.ask(**body, kv_transfer_params=TO_DECODE)
            assert response.status_code == 200, response.text
            found = response.json()["kv_transfer_params"]
            return decode.completion(
                list(sample.prompt), len(sample.tokens), kv_transfer_params=found
            )

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(answer, samples))
        assert answers == [list(sample.tokens) for sample in samples]
        assert_the_gate_decided(decode, RANKS, holds=False)
        accepted = decode.metric("vllm:spec_decode_num_accepted_tokens_total")
        assert (sum(accepted.values()) > 10) == bool(draft)
        loads = decode.log.read_text().count("KV cache transfer for request")
        assert loads >= len(samples)
        assert "does not ask the balance gate" in prefill.log.read_text()
