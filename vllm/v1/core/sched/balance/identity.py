# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks of a group must have in common, or they would decide differently.

Compared at the start-up handshake, where there is one, and by the ranks themselves
before their first exchange: with Ray, or with one front-end for each rank, nobody else
sees all of them. Imports nothing else of vllm at run time.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig

_FLAG = "--data-parallel-balance"
_DISPATCH = "--data-parallel-dispatch"
_STOCK = {"policy": "unknown (stock vLLM)"}

Identity = Mapping[str, Any]
"""The `policy`, the `dispatch` as chosen or None, and the version of the `code`; as
plain types, because it is sent as msgpack and as JSON."""


def identity_of(vllm_config: "VllmConfig") -> dict[str, Any]:
    """The identity of a rank that is started with this configuration."""
    return _identity(vllm_config.parallel_config)


def _identity(parallel_config: "ParallelConfig") -> dict[str, Any]:
    return {
        "policy": parallel_config.data_parallel_balance,
        "dispatch": parallel_config.data_parallel_dispatch,
        "code": code_version(),
    }


@cache
def code_version() -> str:
    """A hash of all files of this folder and those below it.

    They measure the rows, send them and decide. All of them, because a list of those
    that matter would be forgotten; and their bytes, because a version number does not
    show that somebody edited a file on one host.
    """
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def check_same_identity(
    engine: int, ready_message: Mapping[str, Any], parallel_config: "ParallelConfig"
) -> None:
    """Refuses a rank that would decide differently, at the handshake.

    Args:
        engine: the rank.
        ready_message: what it sent to the front-end.
        parallel_config: that of the front-end.

    Raises:
        RuntimeError: it has another identity than the front-end; says in what.
    """
    found = ready_message.get("data_parallel_balance", _STOCK)
    expected = _identity(parallel_config)
    if reason := difference(engine, found, "the front-end", expected):
        raise RuntimeError(reason)


def difference(
    rank: int, found: Identity, reference: str, expected: Identity
) -> str | None:
    """Says in one sentence, with what to do, why a rank cannot be in the group.

    Args:
        rank: the rank.
        found: its identity.
        reference: whom it is compared with, in words.
        expected: the reference's identity.

    Returns:
        The sentence, or None if the two may be in one group. With policy "off"
        nothing is decided, so that any code will do.
    """
    who = f"Data parallel rank {rank}"
    if found["policy"] != expected["policy"]:
        return (
            f"{who} was started with {_FLAG} {found['policy']}, {reference} with "
            f"{_FLAG} {expected['policy']}. Ranks that disagree would wait for each "
            "other for ever; start all of them with the same arguments."
        )
    if found.get("dispatch") != expected["dispatch"]:
        return (
            f"{who} was started with {_dispatch(found)}, {reference} with "
            f"{_dispatch(expected)}. Front-ends would misread what such a rank tells "
            "them; start all of them with the same arguments."
        )
    if expected["policy"] == "off":
        return None
    if found["code"] != expected["code"]:
        return (
            f"{who} has version {found['code']} of the balance code, {reference} has "
            f"{expected['code']}. Ranks that decide differently would not stay in "
            "step; install the same wheel for all of them."
        )
    return None


def _dispatch(identity: Identity) -> str:
    dispatch = identity.get("dispatch")
    return f"{_DISPATCH} {dispatch}" if dispatch else f"no {_DISPATCH}"
