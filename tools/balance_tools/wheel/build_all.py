"""The command `wheels`: the reference wheel and all Ascend wheels."""

from __future__ import annotations

import argparse

from balance_tools.wheel.build import ALL, add_out, build_wheels

add_arguments = add_out


def run(args: argparse.Namespace) -> int:
    """Run `wheels`."""
    return build_wheels(ALL, args.out)
