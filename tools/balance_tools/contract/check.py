"""Compare what our files and hooks use with what a release of upstream has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from balance_tools.contract.names import Names
from balance_tools.contract.typecheck import Checked
from balance_tools.contract.uses import EITHER, OPTIONAL, WORD, Ours, Use

MOST_CANDIDATES = 4


@dataclass(frozen=True, order=True)
class Finding:
    """Something of ours that does not fit a release."""

    file: str
    """Of ours, or the patched one; "" for a Relies-On line."""
    line: int
    """The line; 0 for a Relies-On line."""
    name: str
    """The dotted name that is gone, or the type checker's code."""
    text: str
    """What is wrong, for people."""
    upstream: str = ""
    """What upstream did, as far as the trees show it."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file else ""
        return f"{where}{self.text}" + (f" ({self.upstream})" if self.upstream else "")


def missing(
    uses: Iterable[Use],
    old: Names,
    new: Names,
    seen: frozenset[tuple[str, int, str]] = frozenset(),
    forward: bool = True,
) -> list[Finding]:
    """Return the uses whose names the new tree does not have.

    Args:
        uses: What our files use, found on the old tree.
        old: The tree of the pin.
        new: The tree of the target.
        seen: File, line and last name of what a type checker resolved on the target;
            empty if none has run.
        forward: Whether the target may have names that the pin has not.
    """
    found = []
    for use in uses:
        last = use.names[0].rpartition(".")[2]
        # What the pin has not is of later releases, and must not go unnoticed there.
        if use.kind == OPTIONAL and (last in old.words or not forward):
            continue
        if (use.file, use.line, last) in seen or any(
            _has(new, use, n) for n in use.names
        ):
            continue
        gone = " and ".join(name.removeprefix("?.") for name in use.names)
        text = f"{gone} is gone" if len(use.names) == 1 else f"none is left of {gone}"
        found.append(
            Finding(use.file, use.line, gone, text, _what_upstream_did(use, old, new))
        )
    return sorted(found)


def _has(names: Names, use: Use, name: str) -> bool:
    if use.kind in (WORD, OPTIONAL):
        return name in names.words
    if name.startswith("?."):
        return name[2:] in names.words
    if names.has(name):
        return True
    owner, _, last = name.rpartition(".")
    if (
        use.kind == EITHER
        or names.modules.find(owner)
        or names.modules.module_path(owner)
    ):
        return False
    # The class may have moved to another module, which only our imports care about.
    return any(last in names.members(other) for other in names.elsewhere(owner))


def _what_upstream_did(use: Use, old: Names, new: Names) -> str:
    owner, _, last = use.names[0].rpartition(".")
    if use.kind in (WORD, OPTIONAL):
        return "the word is in no file of upstream any more"
    before, after = set(old.members(owner)), set(new.members(owner))
    if not after:
        return f"{owner} is gone"
    fresh = sorted(after - before)
    parts = set(last.split("_"))
    near = [n for n in fresh if len(parts & set(n.split("_"))) >= 1 and "_" in n]
    near = get_close_matches(last, fresh, MOST_CANDIDATES, 0.5) + near
    near = list(dict.fromkeys(near))[:MOST_CANDIDATES]
    if not near:
        return f"{owner} has no new name like it"
    return f"new in {owner.rpartition('.')[2]}: {', '.join(near)}"


def new_errors(ours: Ours, old: Checked, new: Checked) -> list[Finding]:
    """Return what the type checker finds in code of ours on the target alone.

    The old tree's findings do not count: what is loose in our own types is `make
    lint`'s business.
    """
    known = Counter(error.without_place for error in old.errors)
    found = []
    for error in new.errors:
        if not ours.has(error.file, error.line):
            continue
        if known[error.without_place]:
            known[error.without_place] -= 1
            continue
        found.append(
            Finding(error.file, error.line, error.code, error.message, "type checker")
        )
    return found


def vanished_symbols(
    relied_on: Sequence[tuple[str, tuple[str, ...]]], old: Names, new: Names
) -> list[Finding]:
    """Return the Relies-On lines of which no symbol is left.

    Args:
        relied_on: Name of the patch, and the symbols of one line.
        old: The tree of the pin.
        new: The tree of the target.
    """
    found = []
    for patch, symbols in relied_on:
        if any(new.modules.find(symbol) or new.has(symbol) for symbol in symbols):
            continue
        gone = " | ".join(symbols)
        use = Use("", 0, "relies-on", symbols)
        did = _what_upstream_did(use, old, new)
        found.append(Finding("", 0, gone, f"{patch}: Relies-On {gone} is gone", did))
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
