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
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from balance_tools.distribution import EntryPoints
from balance_tools.wheel.plan import GUARD, OURS, PLUGIN, WheelPlan
from balance_tools.wheel.upstream_metadata import entry_points_of, values_of

KEPT_HEADERS = (
    "Summary",
    "Author",
    "License",
    "Project-URL",
    "Classifier",
    "Requires-Python",
)


def write_dist_infos(plan: WheelPlan, folder: Path) -> None:
    """Write them into `folder`.

    Ours stays visible where a stock vllm or vllm-ascend hides the others. The plugin's
    is as upstream declares it, with our version and one requirement.
    """
    wheel = f"{plan.settings.name} {plan.version}"
    message = _metadata(plan, GUARD, plan.version)
    message.add_header("Summary", f"Part of {wheel}: what was built, intact?")
    message.set_payload(f"To uninstall all of it: pip uninstall {plan.settings.name}\n")
    _write(plan, folder, OURS, message, plan.settings.guard_entry_points)
    if plan.has_plugin:
        upstream = plan.upstreams[PLUGIN]
        message = _metadata(plan, upstream.name, plan.version_of(PLUGIN))
        for header in KEPT_HEADERS:
            for value in values_of(upstream, header):
                message.add_header(header, value)
        message.set_payload(f"Part of {wheel}, which carries this plugin.\n")
        _write(plan, folder, PLUGIN, message, entry_points_of(upstream))


def _metadata(plan: WheelPlan, name: str, version: str) -> Message:
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = name
    message["Version"] = version
    message["Requires-Dist"] = f"{plan.settings.name}=={plan.version}"
    return message


def _write(
    plan: WheelPlan,
    folder: Path,
    package: str,
    metadata: Message,
    entry_points: EntryPoints,
) -> None:
    info = folder / f"{package}-{metadata['Version']}.dist-info"
    info.mkdir(parents=True)
    wheel = Message()  # without it uv calls the environment broken
    wheel["Wheel-Version"] = "1.0"
    wheel["Generator"] = OURS.replace("_", "-")
    wheel["Root-Is-Purelib"] = str(not plan.has_plugin).lower()
    wheel["Tag"] = "-".join(plan.tag)
    texts = {
        "WHEEL": wheel.as_string(),
        "METADATA": metadata.as_string(),
        "entry_points.txt": render_entry_points(entry_points),
        "top_level.txt": f"{package}\n",
    }
    for file, text in texts.items():
        (info / file).write_text(text, encoding="utf-8")
    files = [(f"{info.name}/{file}", info / file) for file in texts]
    record = render_record(files, f"{info.name}/RECORD")
    (info / "RECORD").write_text(record, encoding="utf-8", newline="")


def render_entry_points(entry_points: EntryPoints) -> str:
    lines: list[str] = []
    for group, entries in sorted(entry_points.items()):
        lines += [f"[{group}]", *(f"{k} = {v}" for k, v in sorted(entries.items())), ""]
    return "\n".join(lines)


def render_record(files: Iterable[tuple[str, Path]], record_name: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, path in files:
        content = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
        writer.writerow([name, f"sha256={digest.rstrip(b'=').decode()}", len(content)])
    writer.writerow([record_name, "", ""])
    return text.getvalue()
