"""The dist-infos in a wheel beside its own: the plugin's, and that of our guard.

`importlib.metadata` and pip find it under its own name. Its RECORD lists itself alone:
no lock file names it, so whatever makes an environment equal to one (`uv pip sync`,
pip-sync) removes it, and the code has to stay. Everything is in the wheel's own RECORD,
so that `pip uninstall vllm` leaves nothing. What each needs is in the reconciled
requirements of the wheel, so each requires exactly the wheel.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from balance_tools.distribution import EntryPoints
from balance_tools.wheel.plan import GUARD, OURS, PLUGIN, WheelPlan

KEPT_HEADERS = (
    *("Summary", "Author", "License", "Project-URL", "Classifier", "Requires-Python"),
)


@dataclass(frozen=True)
class DistInfo:
    """What a dist-info says."""

    name: str
    version: str
    package: str
    """The folder that is imported by it; its files are the wheel's."""
    headers: Sequence[tuple[str, str]]
    """Of METADATA, after name and version."""
    description: str
    entry_points: EntryPoints


def write_dist_info(info: DistInfo, folder: Path) -> None:
    """Write a dist-info into `folder`."""
    name = f"{info.name.replace('-', '_')}-{info.version}.dist-info"
    path = folder / name
    path.mkdir(parents=True)
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = info.name
    message["Version"] = info.version
    for header, value in info.headers:
        message[header] = value
    message.set_payload(info.description)
    texts: Mapping[str, str] = {
        "METADATA": message.as_string(),
        "entry_points.txt": render_entry_points(info.entry_points),
        "top_level.txt": f"{info.package}\n",
    }
    for file, text in texts.items():
        (path / file).write_text(text, encoding="utf-8")
    installed = [(f"{name}/{file}", path / file) for file in sorted(texts)]
    record = render_record(installed, f"{name}/RECORD")
    (path / "RECORD").write_text(record, encoding="utf-8", newline="")


def render_entry_points(entry_points: EntryPoints) -> str:
    """The text of an entry_points.txt, sorted."""
    lines: list[str] = []
    for group, entries in sorted(entry_points.items()):
        lines += [f"[{group}]", *(f"{k} = {v}" for k, v in sorted(entries.items())), ""]
    return "\n".join(lines)


def render_record(files: Iterable[tuple[str, Path]], record_name: str) -> str:
    """The text of a RECORD: path, sha256 and size in bytes of each file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, path in files:
        content = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
        writer.writerow([name, f"sha256={digest.rstrip(b'=').decode()}", len(content)])
    writer.writerow([record_name, "", ""])
    return text.getvalue()


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
