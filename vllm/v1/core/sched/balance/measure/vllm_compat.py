# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What differs between the releases of vLLM that these files serve."""

from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.sched.scheduler import Scheduler


def first_of(owner: object, *names: str) -> Any:
    """The first of these attributes that the release has.

    The rebase tools read the names at each call: a release with none of them is
    refused.

    Raises:
        AttributeError: it has none of them.
    """
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise AttributeError(
        f"{type(owner).__qualname__} has none of {', '.join(names)}: these files of "
        "vllm-balance do not fit this release of vLLM."
    )


def max_admitted(scheduler: "Scheduler") -> int:
    """How many requests may run.

    From 0.25 on, an input stream that waits for more keeps its slot; the attribute that
    is looked for came with that release. From 0.31 on, max_num_active_seqs can make it
    less than the slots of the model runner.
    """
    limit: int = first_of(scheduler, "max_num_active_reqs", "max_num_running_reqs")
    if hasattr(scheduler, "reset_preempted_req_ids"):
        limit -= scheduler.num_waiting_for_streaming_input
    return limit


def keep_prefill_interval(scheduler: "Scheduler") -> None:
    """Undoes what the scheduler concludes from requests that the gate has held.

    From 0.24 on it takes waiting requests that are left over for the sign that
    prefills cannot keep up, and ignores prefill_schedule_interval.
    """
    if hasattr(scheduler, "prefill_capacity_bound"):
        scheduler.prefill_capacity_bound = False


def long_prefill_threshold(scheduler: "Scheduler") -> int:
    """The most tokens of one prompt in a step; 0 for no such limit.

    From 0.31 on a request alone has none, and it can be a fair share of the step.
    """
    config = scheduler.scheduler_config
    threshold: int = config.long_prefill_token_threshold
    adaptive = getattr(scheduler, "adaptive_long_prefill_threshold", None)
    if adaptive is None or threshold <= 0:
        return threshold
    requests = sum(scheduler.get_request_counts())
    if requests <= 1:
        return 0
    fair_share = config.max_num_batched_tokens // requests
    return max(threshold, fair_share) if adaptive else threshold


def looks_past_preempted(scheduler: "Scheduler") -> bool:
    """Whether those behind a request that preempts itself, by priority, may still run.

    From 0.33 on they may. The attribute came with that release.
    """
    return getattr(scheduler, "local_prefill_interval", None) is not None


def blocks_to_allocate(coordinator: Any, local_tokens: int, **arguments: Any) -> int:
    """What the coordinator of the KV cache answers.

    Args:
        coordinator: a `KVCacheCoordinator`.
        local_tokens: computed tokens that no connector loads; from 0.30 on it asks.
        arguments: the others of its `get_num_blocks_to_allocate`.
    """
    count = coordinator.get_num_blocks_to_allocate
    if "num_local_computed_tokens" in _parameters(count.__func__):
        arguments["num_local_computed_tokens"] = local_tokens
    blocks: int = count(**arguments)
    return blocks


def step_room(scheduler: "Scheduler", tokens: int, requests: int) -> int:
    """Tokens that a step has left beside others.

    From 0.28 on each request can take slots for drafting, beside its tokens; the
    attribute that is looked for came with that release.

    Args:
        scheduler: the rank's.
        tokens: what the others take.
        requests: how many they are.
    """
    room: int = scheduler.max_num_scheduled_tokens - tokens
    if not hasattr(scheduler, "num_prefill_lookahead"):
        return room
    speculation = scheduler.vllm_config.speculative_config
    slots = speculation.max_num_new_slots_for_drafting if speculation else 0
    most = scheduler.scheduler_config.max_num_batched_tokens
    return min(room, most - tokens - slots * (requests + 1))


def processed_tokens(request: Any, manager: Any) -> int:
    """Computed tokens of which a manager of blocks assumes that they will stay.

    From 0.30 on those of steps that have not ended do not count, in no manager.
    """
    computed: int = request.num_computed_tokens
    if hasattr(request, "num_in_flight_tokens"):
        return computed - request.num_in_flight_tokens
    return computed - getattr(manager, "num_speculative_blocks", 0)


def frees_past_gaps(manager: Any) -> bool:
    """Whether skipped blocks before one that is freed already are freed, too.

    From 0.30 on those of aligned Mamba layers are.
    """
    aligned = getattr(manager, "mamba_cache_mode", "") == "align"
    return aligned and hasattr(manager, "_num_retired_blocks")


def dropping_groups(coordinator: "KVCacheCoordinator") -> set[int]:
    """Groups of the KV cache in which speculation drops the last block of a hit.

    From 0.33 on not all that speculation uses.
    """
    groups: set[int] = first_of(coordinator, "drop_eagle_group_ids", "eagle_group_ids")
    return groups


@cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(signature(function).parameters)
