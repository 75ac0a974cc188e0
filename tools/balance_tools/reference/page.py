"""The command `reference`: writes docs/reference.md from the parsers and the sources.

Each option, metric, reason and variable is there once, and other pages link to it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from balance_tools.errors import ToolError
from balance_tools.files import write_atomically
from balance_tools.paths import Paths
from balance_tools.reference.texts import LIMITS, PAGE, REASONS, VARIABLES
from balance_tools.series.apply import load_series
from balance_tools.series.patchfile import ADDED
from balance_tools.text import read_text, table

PAGE_NAME = "docs/reference.md"
CONFIG = "vllm/config/parallel.py"
OPTIONS = "vllm/v1/core/sched/balance/options.py"
METRICS = "vllm/v1/core/sched/balance/rank/metrics.py"
POLICIES = "vllm_balance/core/policies"
CHOICES = re.compile(r"^(\w+) = Literal\[(.+)\]$", re.M)
FIELD = re.compile(r'^    (\w+): (\w+).* = (.+)\n    ("{3}(?s:.+?)"{3})$', re.M)
"""A field of a configuration: its name, type, default and documentation."""
FEW = 8
OptionRow = tuple[str, str, str]
"""How an option is given, its default, and what it does."""


def page(paths: Paths) -> str:
    """The whole page."""
    shown: dict[OptionRow, str] = {}
    verbs = (_verb(*each, shown) for each in _parsers())
    return PAGE.format(
        serve="\n".join(_serve(paths)),
        commands="\n".join(line for verb in verbs for line in verb),
        metrics="\n".join(_metrics(paths.root)),
        reasons="\n".join(_reasons(paths.root)),
        limits="\n".join(_limits(paths.root)),
        variables="\n".join(table(("variable", "what"), VARIABLES.items())),
    )


def _serve(paths: Paths) -> Iterator[str]:
    """What our patches add to the fields of `ParallelConfig`, which are options."""
    patches = load_series(paths.patches("vllm")).patches
    changes = (change for patch in patches for change in patch.changes)
    lines = [line for path, tag, line in changes if (path, tag) == (CONFIG, ADDED)]
    added = b"".join(lines).decode()
    choices = dict(CHOICES.findall(added))
    fields = {name: about for name, *about in FIELD.findall(added)}
    for name in _constants(paths.root / OPTIONS)["BALANCE_OPTIONS"]:
        kind, default, text = fields[name]
        yield from (f"### `--{name.replace('_', '-')}`", "")
        yield f"One of {choices[kind]}; default: {default.replace('None', 'none')}."
        yield from ("", inspect.cleandoc(ast.literal_eval(text)), "")


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each verb of our command, and its parser."""
    for action in importlib.import_module("vllm_balance.cli").parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, found in action.choices.items():
                yield f"vllm-balance {verb}", found


def _verb(
    verb: str, parser: argparse.ArgumentParser, shown: dict[OptionRow, str]
) -> Iterator[str]:
    """The options of a verb by group, and the names of those that another verb has."""
    about = f"{parser.description} {parser.epilog or ''}".strip()
    yield from (f"## `{verb}`", "", about, "")
    others: dict[str, list[str]] = {}
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if action.help == argparse.SUPPRESS or action.dest == "help":
                continue
            row = _row(action)
            if (of := shown.setdefault(row, verb)) == verb:
                rows.append(row)
            else:
                others.setdefault(of, []).append(row[0])
        if rows:
            title = f"{group.title}, {group.description or ''}".rstrip(", ")
            yield from (f"*{title}*", "")
            yield from (*table(("option", "default", "what"), rows), "")
    for of, names in others.items():
        said = ", ".join(names) if len(names) <= FEW else "all others that it has"
        yield from (f"As in [{of}](#{of.replace(' ', '-')}): {said}.", "")


def _row(action: argparse.Action) -> OptionRow:
    names, text, default = ", ".join(action.option_strings), action.help or "", ""
    if action.choices:
        choices = ", ".join(f"`{each}`" for each in action.choices)
        text = f"{text.rstrip('.')}; one of {choices}"
    if action.default is not None and names:  # then its help need not say it again
        text = re.sub(r" \(default: (%\(default\)s|[^)]*)\)", "", text)
        default = "off" if action.default is False else f"`{action.default}`"
    metavar = action.metavar or ("" if names else action.dest)
    many = " …" if action.nargs == "+" else ""
    given = f"`{f'{names} {metavar}'.strip()}{many}`"
    default = default.replace("`[]`", "")
    return given.replace("|", "\\|"), default, text.strip().replace("|", "\\|")


def _metrics(root: Path) -> list[str]:
    found = _constants(root / METRICS)
    rows = []
    for name, (kind, text) in found["_METRICS"].items():
        labels = ("engine", *found["_LABELS"].get(name, ()))
        full = f"`vllm:dp_balance_{name}{'_total' * (kind == '_counter_cls')}`"
        by = ", ".join(f"`{label}`" for label in labels)
        rows.append((full, kind.split("_")[1], by, text))
    return table(("metric", "kind", "by", "what"), rows)


def _reasons(root: Path) -> list[str]:
    """A table of the reasons that the policies give for their decisions."""
    found: set[str] = set()
    for path in sorted((root / POLICIES).glob("*.py")):
        names = _constants(path)
        for node in ast.walk(ast.parse(read_text(path))):
            if isinstance(node, ast.keyword) and node.arg == "reason":
                parts = ast.walk(node.value)
                found |= {str(p.value) for p in parts if isinstance(p, ast.Constant)}
            elif isinstance(node, ast.Call) and "opened" in ast.unparse(node.func):
                found.add(names[ast.unparse(node.args[0])])
    _check(REASONS, found, "reasons of policies")
    rows = [(f"`{reason}`", *about) for reason, about in REASONS.items()]
    return table(("reason", "policy", "why the ranks admit or hold"), rows)


def _limits(root: Path) -> list[str]:
    limits: dict[str, int] = {}
    for path in sorted((root / "vllm/fixes").glob("*.py")):
        _constants(path, limit=limits.setdefault)
    _check(LIMITS, limits, "limits in vllm/fixes")
    rows = [(f"`{name}`", f"{limits[name]:,}", text) for name, text in LIMITS.items()]
    return table(("variable", "default", "of what"), rows)


def _constants(path: Path, **given: Any) -> dict[str, Any]:
    """The constants at the top of a module, as far as they need no import."""
    for node in ast.parse(read_text(path)).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            with contextlib.suppress(NameError):
                exec(compile(ast.Module([node], []), str(path), "exec"), given)
    return given


def _check(texts: Iterable[str], found: Iterable[str], what: str) -> None:
    if wrong := sorted({*texts} ^ {*found}):
        raise ToolError(
            f"reference/texts.py: expected a text for each of the {what}, found "
            f"{', '.join(wrong)} only here or only there; add or remove the text"
        )


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    paths = Paths.find()
    path = paths.root / PAGE_NAME
    write_atomically(path, page(paths))
    print(f"{path}: written")
    return 0
