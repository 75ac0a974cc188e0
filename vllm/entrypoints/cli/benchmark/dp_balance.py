# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`vllm bench dp-balance`."""

import argparse
import sys

from vllm.benchmarks.dp_balance.cli import add_cli_args, main
from vllm.benchmarks.dp_balance.trial.command import take_words
from vllm.entrypoints.cli.benchmark.base import BenchmarkSubcommandBase


class BenchmarkDPBalanceSubcommand(BenchmarkSubcommandBase):
    """The `dp-balance` subcommand for `vllm bench`."""

    name = "dp-balance"
    help = "Show in virtual time what data parallel balance scheduling would do."

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments of the verbs."""
        words = take_words(sys.argv)
        add_cli_args(parser, words)

    @staticmethod
    def cmd(args: argparse.Namespace) -> None:
        """Runs the verb."""
        main(args)
