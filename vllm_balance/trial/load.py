# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What is sent in a turn, by `vllm bench serve`."""

import argparse
import contextlib
import copy
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UsageError
from ..server_api import Endpoint

OURS = (
    "base_url",
    "save_result",
    "append_result",
    "result_filename",
    "percentile_metrics",
    "metric_percentiles",
)
"""Options of `vllm bench serve` that the trial sets."""
MEASURED = {"percentile_metrics": "ttft,tpot,itl,e2el", "metric_percentiles": "99"}
WARM_UPS = 8
HASH_SEED, LOADS_SEED = "PYTHONHASHSEED", "1729"
"""By Python's hash of a string vLLM draws the prompts of a trace: another process that
goes on with a round sends the same ones by the same seed alone."""


class Parser(argparse.ArgumentParser):
    """Its errors are ours."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}.")


class Load:
    """Whatever `vllm bench serve` can send, the same in every turn of a round."""

    def __init__(self, words: Sequence[str], log: Path, show_progress: bool) -> None:
        """Reads its options.

        Args:
            words: the options.
            log: gets what it prints.
            show_progress: on a terminal.

        Raises:
            UsageError: an option is wrong.
        """
        # Where a server is these are there; the simulator does without.
        from vllm.benchmarks.serve import add_cli_args
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        if "VLLM_LOGGING_LEVEL" not in os.environ:  # else it says what it runs on
            logging.getLogger("vllm").setLevel(logging.WARNING)

        parser = type("Parser", (Parser, FlexibleArgumentParser), {})(add_help=False)
        add_cli_args(parser)
        parser.set_defaults(num_warmups=WARM_UPS, save_detailed=True, **MEASURED)
        self.args = parser.parse_args(list(words))
        for name in OURS:
            if getattr(self.args, name) != parser.get_default(name):
                option = name.replace("_", "-")
                raise UsageError(f"--{option}: the trial sets it; leave it out.")
        if (path := Path(self.args.dataset_path or "")).exists() and not (
            path.is_file() or path.is_dir()
        ):
            raise UsageError(
                f"--dataset-path {path}: is no regular file; write to one what comes "
                "out of it."
            )
        self.args.disable_tqdm |= not (show_progress and sys.stderr.isatty())
        self._log = log

    def find_tokenizer(self, endpoint: Endpoint) -> None:
        """Looks for a deployment's tokenizer, as `vllm bench serve` will.

        Raises:
            UsageError: it is not; the server may name a folder of its own machine.
        """
        from vllm.benchmarks.serve import get_tokenizer

        args = self.args
        if args.skip_tokenizer_init:
            return
        name = args.tokenizer or args.model or endpoint.model()[1]
        try:
            get_tokenizer(
                name,
                tokenizer_mode=args.tokenizer_mode,
                trust_remote_code=args.trust_remote_code,
            )
        except Exception as error:  # of any library, and of the hub
            said = "is no folder here" if name.startswith("/") else str(error)
            raise UsageError(
                f"--tokenizer: none of {name}, the model of {endpoint.url}, is found "
                f"({said.strip().splitlines()[0]:.200}); give a folder that has it, or "
                "its name on the hub."
            ) from None

    async def send(self, endpoint: Endpoint, number: int) -> dict[str, Any]:
        """Sends that of a round, in this process; what `--save-detailed` saves.

        With a salt of its own: nothing is found in a prefix cache that was sent before.
        """
        from vllm.benchmarks.serve import main_async

        args = copy.copy(self.args)
        args.base_url, args.seed = endpoint.url, args.seed + number
        args.extra_body = {**(args.extra_body or {}), "cache_salt": secrets.token_hex()}
        if args.model is None:
            args.served_model_name, args.model = endpoint.model()
        try:
            with self._log.open("w") as log, contextlib.redirect_stdout(log):
                saved: dict[str, Any] = await main_async(args)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"vllm bench serve: {error} Its log: {self._log}"
            ) from None
        return saved
