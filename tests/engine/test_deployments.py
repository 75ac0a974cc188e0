"""What deploy/ and the pages about it start is what `vllm serve` takes."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.config import ParallelConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

import deployments

RANKS, RANKS_PER_HOST = 16, 8


def parse(arguments: list[str]) -> argparse.Namespace:
    """As `vllm` does."""
    serve = ServeSubcommand()
    parser = FlexibleArgumentParser()
    serve.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed = parser.parse_args(arguments)
    serve.validate(parsed)
    return parsed


def parallel_config(arguments: list[str], model: Path) -> ParallelConfig:
    """What the engine makes of it, for a model that is here."""
    parsed = parse(arguments)
    parsed.model = str(model)
    engine_arguments = AsyncEngineArgs.from_cli_args(parsed)
    return engine_arguments.create_engine_config(
        headless=parsed.headless
    ).parallel_config


def kubernetes(variant: str) -> Callable[[int, Path], list[str]]:
    return lambda host, folder: deployments.kubernetes(variant, host, folder)


def systemd(host: int, folder: Path) -> list[str]:
    if host:
        return deployments.systemd("vllm-headless@.service", str(RANKS_PER_HOST))
    return deployments.systemd("vllm-head.service", "")


@pytest.mark.parametrize(
    ("start", "hybrid"),
    [
        (kubernetes("leaderworkerset"), False),
        (kubernetes("statefulset"), True),
        (systemd, False),
    ],
    ids=["leaderworkerset", "statefulset", "systemd"],
)
def test_two_hosts_are_one_group(
    start: Callable[[int, Path], list[str]],
    hybrid: bool,
    moe_model: Path,
    tmp_path: Path,
) -> None:
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


def test_one_rank_per_pod_is_external_load_balancing(
    moe_model: Path, tmp_path: Path
) -> None:
    one = {"RANKS_PER_HOST": "1"}
    command = deployments.kubernetes("statefulset", 1, tmp_path, **one)
    config = parallel_config(command, moe_model)
    assert (config.data_parallel_rank, config.data_parallel_size) == (1, 2)
    assert config.data_parallel_external_lb
    assert not config.data_parallel_hybrid_lb


def test_the_page_shows_commands_that_vllm_takes() -> None:
    commands = list(deployments.documented())
    assert len(commands) == 3, "two hosts by hand, and Ray"
    for arguments in commands:
        parse(arguments)
