"""`info`: what is installed."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from vllm_balance.build_info import NOT_BUILT, BuildInfo, load_build_info


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="the whole record")


def run(chosen: argparse.Namespace) -> int:
    info = load_build_info()
    if info is None:
        print(NOT_BUILT, file=sys.stderr)
        return 1
    print(json.dumps(asdict(info), indent=1) if chosen.json else describe(info))
    return 0


def describe(info: BuildInfo) -> str:
    target = info.target
    if info.kernels:
        device = f"{info.device} ({info.soc})" if info.soc else info.device
        target += f", {info.kernels} kernels for {device} on {info.arch}"
    commit = info.commit or "not known"
    if info.dirty:
        commit += " with changes"
    rows = {
        **{f"installed {name}": value for name, value in info.distributions.items()},
        **{f"upstream {name}": value for name, value in info.upstreams.items()},
        "target": target,
        "kernels from": info.kernel_wheel or info.toolchain,
        "commit": commit,
        "files of ours": str(len(info.own_files)),
        "lock": info.lock_sha256,
        **{f"series {name}": value for name, value in info.series_sha256.items()},
        "folder": str(Path(__file__).resolve().parents[1]),
        **advisory_rows(info),
    }
    shown = {name: value for name, value in rows.items() if value}
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def advisory_rows(info: BuildInfo) -> dict[str, str]:
    statuses = [advisory["status"] for advisory in info.advisories.values()]
    numbers = [f"{statuses.count(status)} {status}" for status in sorted({*statuses})]
    rows = {"advisories": f"until {info.advisories_as_of}: {', '.join(numbers)}"}
    for name, advisory in info.advisories.items():
        if advisory["status"] == "open":
            rows[f"open {name}"] = f"{advisory['severity']}; {advisory['detail']}"
    return rows
