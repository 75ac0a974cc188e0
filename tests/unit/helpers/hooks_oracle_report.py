"""Where the hooks of the options, of the metrics and of the plugin must stand."""

from __future__ import annotations

import ast
from collections.abc import Callable

from oracle_syntax import (
    arguments,
    block_with,
    fields,
    function,
    imported,
    klass,
    once,
)

OPTIONS = ("data_parallel_balance", "data_parallel_balance_ttft")


def option_is_checked_and_passed(tree: ast.Module) -> None:
    """EngineArgs hands the options to ParallelConfig, and the parser has them, once."""
    given = arguments(
        function(tree, "EngineArgs.create_engine_config"), "ParallelConfig"
    )
    own = fields(klass(tree, "EngineArgs"))
    for option in OPTIONS:
        assert given.get(option) == f"self.{option}"
        assert own.get(option) in (f"ParallelConfig.{option}", "None")
    parser = function(tree, "EngineArgs.add_cli_args")
    loops = [
        n
        for n in ast.walk(parser)
        if isinstance(n, ast.For) and ast.unparse(n.iter) == repr(OPTIONS)
    ]
    assert len(loops) == 1
    assert "parallel_group.add_argument(flag" in ast.unparse(loops[0])


def config_has_the_field(tree: ast.Module) -> None:
    """ParallelConfig has the field and checks it at the end of its validation."""
    own = fields(klass(tree, "ParallelConfig"))
    assert own.get("data_parallel_balance") == "'off'"
    assert "default=None" in own.get("data_parallel_balance_ttft", "")
    post = function(tree, "ParallelConfig.__post_init__")
    body, index = block_with(post, lambda t: t == "check_balance_config(self)")
    assert any(t.startswith("self.data_parallel_index =") for t in body[:index])
    once(tree, "check_balance_config(self)")


def options_are_no_part_of_the_hash(tree: ast.Module) -> None:
    """ParallelConfig.compute_hash, a part of the key of the compile cache, leaves out
    both options."""
    compute = function(tree, "ParallelConfig.compute_hash")
    body, index = block_with(compute, lambda t: t.startswith("ignored_factors |= "))
    assert ast.literal_eval(body[index].partition("|= ")[2]) == set(OPTIONS)
    assert body[index + 1] == "factors = get_hash_factors(self, ignored_factors)"


def names_of_the_policies_stand_above_the_config(tree: ast.Module) -> None:
    """The type of the option is defined at the top, before the class that uses it."""
    body = [ast.unparse(n) for n in tree.body]
    (own,) = [i for i, t in enumerate(body) if t.startswith("DataParallelBalance = ")]
    assert "'off'" in body[own]
    assert own < tree.body.index(klass(tree, "ParallelConfig"))


def subcommand_is_imported_with_a_sibling(tree: ast.Module) -> None:
    """The module of `vllm bench serve` imports ours beside the base class."""
    body = [ast.unparse(n) for n in tree.body]
    ours = body.index("from vllm.entrypoints.cli.benchmark import dp_balance")
    assert body[ours + 1].startswith("from vllm.entrypoints.cli.benchmark.base import")
    once(tree, "from vllm.entrypoints.cli.benchmark import dp_balance")


def scheduler_sends_the_report(tree: ast.Module) -> None:
    """make_stats puts the report of the gate, if there is one, into SchedulerStats."""
    given = arguments(function(tree, "Scheduler.make_stats"), "SchedulerStats")
    wanted = "self.balance_gate and self.balance_gate.take_stats()"
    assert given.get("dp_balance_stats") == wanted
    once(tree, "take_stats()")


def stats_have_the_field(tree: ast.Module) -> None:
    """SchedulerStats has the field, empty unless there is a gate."""
    assert fields(klass(tree, "SchedulerStats")).get("dp_balance_stats") == "None"


def metrics_are_made_with_the_labels(tree: ast.Module) -> None:
    """The logger makes the metrics once it has the labels, under no condition."""
    init = function(tree, "PrometheusStatLogger.__init__")
    body = [ast.unparse(s) for s in init.body]
    (made,) = [i for i, t in enumerate(body) if t.startswith("self.dp_balance_prom =")]
    labels = [i for i, t in enumerate(body) if t.startswith("per_engine_labelvalues")]
    assert labels
    assert labels[0] < made
    once(tree, "DPBalanceProm(self, vllm_config, labelnames, per_engine_labelvalues)")


def metrics_see_every_report(tree: ast.Module) -> None:
    """record() hands each report on, among the other parts of the scheduler's stats."""
    record = function(tree, "PrometheusStatLogger.record")
    (outer,) = [
        n
        for n in record.body
        if isinstance(n, ast.If)
        and ast.unparse(n.test) == "scheduler_stats is not None"
    ]
    own = [ast.unparse(n) for n in outer.body]
    (observed,) = [t for t in own if "dp_balance_prom.observe(" in t]
    assert observed == (
        "self.dp_balance_prom.observe(scheduler_stats.dp_balance_stats, engine_idx)"
    )
    once(tree, "dp_balance_prom.observe(")


def plugin_leaves_balance_to_vllm(tree: ast.Module) -> None:
    """The predicate says no, before anything else, where vLLM has the option."""
    first = function(tree, "_balance_scheduling_enabled").body[0]
    assert ast.unparse(first) == (
        "if hasattr(getattr(vllm_config, 'parallel_config', None), "
        "'data_parallel_balance'):\n    return False"
    )
    once(tree, "'data_parallel_balance'")


def plugin_maps_its_switches_before_its_check(tree: ast.Module) -> None:
    """The switches are adopted once they are parsed, and before they are checked."""
    body, index = block_with(
        function(tree, "NPUPlatform.check_and_update_config"),
        lambda t: t.startswith("adopt_legacy_switches(vllm_config, ascend_config"),
    )
    parsed = [
        i for i, t in enumerate(body) if t.startswith("ascend_config = init_ascend_")
    ]
    assert parsed
    assert parsed[0] < index
    following = body[index + 1]
    assert "ascend_config.enable_balance_scheduling" in following or (
        following == "_check_ascend_config(vllm_config, ascend_config)"
    )
    once(tree, "adopt_legacy_switches(")


BALANCE = "vllm.v1.core.sched.balance"
CHECKS: dict[str, tuple[Callable[[ast.Module], None], ...]] = {
    "vllm/config/parallel.py": (
        imported(f"{BALANCE}.validation", "check_balance_config"),
        names_of_the_policies_stand_above_the_config,
        config_has_the_field,
        options_are_no_part_of_the_hash,
    ),
    "vllm/engine/arg_utils.py": (
        imported("vllm.config.parallel", "DataParallelBalance"),
        option_is_checked_and_passed,
    ),
    "vllm/entrypoints/cli/benchmark/serve.py": (subcommand_is_imported_with_a_sibling,),
    "vllm/v1/core/sched/scheduler.py": (scheduler_sends_the_report,),
    "vllm/v1/metrics/loggers.py": (
        imported(f"{BALANCE}.metrics", "DPBalanceProm"),
        metrics_are_made_with_the_labels,
        metrics_see_every_report,
    ),
    "vllm/v1/metrics/stats.py": (stats_have_the_field,),
    "vllm_ascend/patch/platform/patch_balance_schedule.py": (
        plugin_leaves_balance_to_vllm,
    ),
    "vllm_ascend/platform.py": (
        imported(f"{BALANCE}.legacy", "adopt_legacy_switches"),
        plugin_maps_its_switches_before_its_check,
    ),
}
