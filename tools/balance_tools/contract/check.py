"""Compare what our files and hooks use with what a release of upstream has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher

from balance_tools.contract.names import Names
from balance_tools.contract.typecheck import Finding
from balance_tools.contract.uses import EITHER, OPTIONAL, WORD, Ours, Use
from balance_tools.series.patchfile import Patch


def missing(
    uses: Iterable[Use],
    old: Names,
    new: Names,
    forward: bool = True,
) -> list[Finding]:
    """Return the uses whose names the new tree does not have.

    Args:
        uses: What our files use, found on the old tree.
        old: The tree of the pin.
        new: The tree of the target.
        forward: Whether the target may have names that the pin has not.
    """
    found = []
    for use in uses:
        last = use.names[0].rpartition(".")[2]
        # What the pin has not is of later releases, and must not go unnoticed there.
        if use.kind == OPTIONAL and (last in old.words or not forward):
            continue
        if any(_has(new, use, name) for name in use.names):
            continue
        gone = " and ".join(use.names)
        text = f"{gone} is gone" if len(use.names) == 1 else f"none is left of {gone}"
        found.append(Finding(use.file, use.line, text))
    return sorted(found)


def _has(names: Names, use: Use, name: str) -> bool:
    if use.kind in (WORD, OPTIONAL, EITHER):
        return name in names.words
    if names.has(name):
        return True
    owner, _, last = name.rpartition(".")
    if names.modules.find(owner) or names.modules.module_path(owner):
        return False
    # The class may have moved to another module, which only our imports care about.
    return any(last in names.members(other) for other in names.elsewhere(owner))


def new_errors(
    ours: Ours, old: Iterable[Finding], new: Iterable[Finding]
) -> list[Finding]:
    """Return what the type checker finds in code of ours on the target alone.

    The old tree's findings do not count: what is loose in our own types is `make
    lint`'s business.
    """
    known = Counter(error.without_place for error in old)
    found = []
    for error in new:
        if not ours.has(error.file, error.line):
            continue
        if known[error.without_place]:
            known[error.without_place] -= 1
            continue
        found.append(error)
    return found


def vanished_symbols(patches: Iterable[Patch], new: Names) -> list[Finding]:
    """Return the Relies-On lines of which no symbol is left."""
    found = []
    for patch in patches:
        for symbols in patch.header.relies_on:
            if not any(new.modules.find(name) or new.has(name) for name in symbols):
                gone = " | ".join(symbols)
                text = f"{patch.name}: Relies-On {gone} is gone"
                found.append(Finding("", 0, text))
    return found


def changed_lines(old: bytes, new: bytes) -> frozenset[int]:
    """Return the numbers of the lines that `new` has and `old` lacks."""
    before, after = old.splitlines(), new.splitlines()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    lines: set[int] = set()
    for tag, _, _, first, last in matcher.get_opcodes():
        if tag in ("insert", "replace"):
            lines.update(range(first + 1, last + 1))
    return frozenset(lines)
