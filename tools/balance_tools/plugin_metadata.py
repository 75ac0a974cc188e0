"""The second dist-info of an Ascend wheel: the plugin's, beside vLLM's.

`importlib.metadata` and pip find the plugin under its own name, and pip and uv can
uninstall it by that name. Its RECORD lists the plugin's package and itself, so that
`pip uninstall vllm-ascend` takes the plugin away and leaves vLLM; everything is in
vLLM's RECORD too, so that `pip uninstall vllm` leaves nothing.
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
from balance_tools.wheel_plan import PLUGIN, WheelPlan

KEPT_HEADERS = (
    "Summary",
    "Author",
    "License",
    "Project-URL",
    "Classifier",
    "Requires-Python",
)


def write_plugin_dist_info(plan: WheelPlan, wheel_root: Path, folder: Path) -> None:
    """Write the dist-info into `folder`; the plugin's package lies in `wheel_root`.

    Call it when the package is complete: RECORD holds a hash of every file.
    """
    name = f"{PLUGIN}-{plan.plugin_version}.dist-info"
    dist_info = folder / name
    dist_info.mkdir(parents=True)
    upstream = plan.upstreams[PLUGIN]
    (dist_info / "METADATA").write_text(plugin_metadata(plan), encoding="utf-8")
    (dist_info / "entry_points.txt").write_text(
        render_entry_points(upstream.entry_points), encoding="utf-8"
    )
    (dist_info / "top_level.txt").write_text(f"{PLUGIN}\n", encoding="utf-8")
    installed = [
        (path.relative_to(base).as_posix(), path)
        for base, top in ((wheel_root, wheel_root / PLUGIN), (folder, dist_info))
        for path in top.rglob("*")
        if path.is_file()
    ]
    record = render_record(sorted(installed), f"{name}/RECORD")
    (dist_info / "RECORD").write_text(record, encoding="utf-8", newline="")


def plugin_metadata(plan: WheelPlan) -> str:
    """METADATA of the plugin: upstream's, with our version and one requirement.

    What the plugin needs is in the reconciled requirements of the distribution that
    carries it, so it requires exactly that one.
    """
    upstream = plan.upstreams[PLUGIN]
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = upstream.name
    message["Version"] = plan.plugin_version
    for header in KEPT_HEADERS:
        for value in upstream.values(header):
            message[header] = value
    message["Requires-Dist"] = f"{plan.settings.name}=={plan.version}"
    message.set_payload(
        f"Part of {plan.settings.name} {plan.version}, which carries this plugin.\n"
    )
    return message.as_string()


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
