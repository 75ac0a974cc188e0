"""What deploy/ and the pages about it start is what `vllm serve` takes."""

import subprocess
from functools import partial

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli import serve
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

import deployments

RANKS, RANKS_PER_HOST = 4, 2


def parse(arguments):
    """As `vllm` does."""
    subcommand = ServeSubcommand()
    parser = FlexibleArgumentParser()
    subcommand.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed = parser.parse_args(arguments)
    subcommand.validate(parsed)
    return parsed


def parallel_config(arguments, model):
    """What the engine makes of it, for a model that is here."""
    parsed = parse(arguments)
    parsed.model = str(model)
    # What belongs to the model and the device of the recipe.
    parsed.tensor_parallel_size, parsed.quantization = 1, None
    parsed.max_model_len, parsed.gpu_memory_utilization = None, 0.5
    parsed.compilation_config = type(parsed.compilation_config)()
    parsed.speculative_config = None
    engine_arguments = AsyncEngineArgs.from_cli_args(parsed)
    return engine_arguments.create_engine_config(
        headless=parsed.headless
    ).parallel_config


def systemd(host, folder):
    if host:
        return deployments.systemd("vllm-headless@.service", str(RANKS_PER_HOST))
    return deployments.systemd("vllm-head.service", "")


DEPLOYED = {
    "leaderworkerset": partial(deployments.kubernetes, "leaderworkerset"),
    "statefulset": partial(deployments.kubernetes, "statefulset"),
    "systemd": systemd,
}
each_way = pytest.mark.parametrize("way", DEPLOYED)


@each_way
def test_two_hosts_are_one_group(way, moe_model, tmp_path):
    start, hybrid = DEPLOYED[way], way == "statefulset"
    commands = [start(host, tmp_path) for host in range(RANKS // RANKS_PER_HOST)]
    for host, command in enumerate(commands):
        assert ("--headless" in command) == (host > 0 and not hybrid)
        config = parallel_config(command, moe_model)
        assert config.data_parallel_size == RANKS
        assert config.data_parallel_size_local == RANKS_PER_HOST
        assert config.data_parallel_rank == host * RANKS_PER_HOST
        assert config.data_parallel_hybrid_lb == hybrid
        assert not config.data_parallel_external_lb
        assert config.enable_expert_parallel
        assert config.data_parallel_balance == "adaptive"
        assert config.data_parallel_rpc_port == 13345


@each_way
def test_a_host_starts_an_api_server_for_each_rank_that_it_serves(
    way, tmp_path, monkeypatch
):
    """By upstream's own rule; none on a host without an API."""
    for host in (0, 1):
        hybrid = way == "statefulset"
        served = RANKS_PER_HOST if hybrid else 0 if host else RANKS
        assert api_servers(DEPLOYED[way](host, tmp_path), monkeypatch) == served


def test_documented_commands_are_taken(monkeypatch):
    commands = list(deployments.documented())
    assert len(commands) >= 5, "two hosts by hand, Ray, README, images"
    for page, arguments in commands:
        headless = "--headless" in arguments
        assert bool(api_servers(arguments, monkeypatch)) != headless, (page, arguments)


def api_servers(arguments, monkeypatch):
    """How many `vllm` would start, without the reference platform's default of one."""
    started = []
    platform, defaults = type(current_platform), "pre_register_and_update"
    several = "run_multi_api_server"
    with monkeypatch.context() as patch:
        patch.setattr(platform, defaults, lambda *_: None)
        patch.setattr(serve, "run_headless", lambda args: started.append(0))
        patch.setattr(serve, several, lambda a: started.append(a.api_server_count))
        patch.setattr(serve, "run_server", lambda args: started.append(1))
        patch.setattr(serve, "run_dp_supervisor", lambda args: started.append(1), False)
        patch.setattr(serve.uvloop, "run", lambda _: None)
        ServeSubcommand.cmd(parse(arguments))
    (count,) = started
    return count


def test_an_index_that_kubernetes_did_not_set_is_an_error(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        deployments.kubernetes("statefulset", 1, tmp_path, POD_INDEX="")


def test_the_group_of_a_pod_is_told_by_its_name(tmp_path):
    command = deployments.kubernetes("statefulset", 1, tmp_path)
    address = command[command.index("--data-parallel-address") + 1]
    assert address == "second-vllm-0.second-vllm-hosts"


def test_one_rank_per_pod_is_external_load_balancing(moe_model, tmp_path):
    one = {"RANKS_PER_HOST": "1"}
    command = deployments.kubernetes("statefulset", 1, tmp_path, **one)
    config = parallel_config(command, moe_model)
    assert (config.data_parallel_rank, config.data_parallel_size) == (1, 2)
    assert config.data_parallel_external_lb
    assert not config.data_parallel_hybrid_lb


@pytest.mark.parametrize(
    ("role", "kv_role", "balance", "dispatch"),
    [
        ("prefill", "kv_producer", "off", "tokens"),
        ("decode", "kv_consumer", "adaptive", None),
    ],
)
def test_hosts_of_one_role(role, kv_role, balance, dispatch, tmp_path):
    changed = deployments.variables(f"prefill-decode/{role}")
    parsed = parse(deployments.kubernetes("statefulset", 0, tmp_path, **changed))
    connector = parsed.kv_transfer_config
    assert (connector.kv_role, connector.engine_id) == (kv_role, role)
    sizes = {"dp_size": RANKS_PER_HOST, "tp_size": parsed.tensor_parallel_size}
    expected = {"prefill": sizes, "decode": sizes}
    assert connector.kv_connector_extra_config == expected
    assert parsed.data_parallel_size == RANKS_PER_HOST
    found = parsed.data_parallel_balance, parsed.data_parallel_dispatch
    assert found == (balance, dispatch)
