"""The distributions that a wheel carries beside its own: the plugin's, and our guard's.

What each needs is in the reconciled requirements of the wheel, so each requires exactly
the wheel.
"""

from __future__ import annotations

from balance_tools.wheel.dist_info import DistInfo
from balance_tools.wheel.plan import GUARD, OURS, PLUGIN, WheelPlan

KEPT_HEADERS = (
    "Summary",
    "Author",
    "License",
    "Project-URL",
    "Classifier",
    "Requires-Python",
)


def further_dist_infos(plan: WheelPlan) -> list[DistInfo]:
    """The dist-infos of a wheel beside its own."""
    return [guard(plan), *([plugin(plan)] if plan.has_plugin else [])]


def guard(plan: WheelPlan) -> DistInfo:
    """Ours: it stays visible where a stock vllm or vllm-ascend hides the others."""
    summary = f"Part of {plan.settings.name} {plan.version}: what was built, intact?"
    return DistInfo(
        name=GUARD,
        version=plan.version,
        package=OURS,
        headers=[("Summary", summary), _requirement(plan)],
        description=f"To uninstall all of it: pip uninstall {plan.settings.name}\n",
        entry_points=plan.settings.guard_entry_points,
    )


def plugin(plan: WheelPlan) -> DistInfo:
    """The plugin's, as upstream declares it, with our version and one requirement."""
    upstream = plan.upstreams[PLUGIN]
    kept = [(name, value) for name in KEPT_HEADERS for value in upstream.values(name)]
    return DistInfo(
        name=upstream.name,
        version=plan.version_of(PLUGIN),
        package=PLUGIN,
        headers=[*kept, _requirement(plan)],
        description=(
            f"Part of {plan.settings.name} {plan.version}, which carries this plugin.\n"
        ),
        entry_points=upstream.entry_points,
    )


def _requirement(plan: WheelPlan) -> tuple[str, str]:
    return ("Requires-Dist", f"{plan.settings.name}=={plan.version}")
