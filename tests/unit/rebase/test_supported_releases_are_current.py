"""Every further supported release follows from the pin; its hooks are in place."""

from __future__ import annotations

import ast

import pytest

from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.rebase.derive import derive
from balance_tools.rebase.session import work_root
from balance_tools.rebase.supported_release import HASHES, SupportedRelease
from balance_tools.series.apply import load_series, patched_files
from balance_tools.upstream.pristine import ensure_pristine
from hooks_oracle import CHECKS, SUPPORTED, misplaced

PATHS = Paths.find()
NAMES = sorted(path.parent.name for path in PATHS.root.glob(f"lines/*/{HASHES}"))


@pytest.fixture(scope="module", params=NAMES)
def derived(request: pytest.FixtureRequest) -> tuple[str, dict[str, bytes]]:
    """Name of a supported release, and every file that its series touches, patched."""
    release = SupportedRelease.find(PATHS, request.param)
    with exclusive(work_root(PATHS) / ".lock"):
        work, _ = derive(PATHS, release)
        found: dict[str, bytes] = {}
        for package, artifact in release.lock().packages.items():
            series = load_series(work.final_series(package))
            files = patched_files(series, ensure_pristine(artifact, PATHS))
            found |= {path: content for path, content in files.items() if content}
    return release.name, found


def test_every_hook_is_where_it_must_be(
    derived: tuple[str, dict[str, bytes]],
) -> None:
    name, files = derived
    assert set(SUPPORTED) == set(NAMES)
    assert set(files) == set(CHECKS) | set(SUPPORTED[name])
    assert misplaced(files, name) == []


def test_the_oracle_sees_when_a_hook_of_it_alone_is_gone(
    derived: tuple[str, dict[str, bytes]],
) -> None:
    name, files = derived
    for path in SUPPORTED[name]:
        (hook,) = [
            node
            for node in ast.walk(ast.parse(files[path]))
            if isinstance(node, ast.If)
            and "balance_gate" in ast.unparse(node.test)
            and ast.unparse(node.body[0]).endswith(("= False", "reset()"))
        ]
        lines = files[path].splitlines(keepends=True)
        del lines[hook.lineno - 1 : hook.end_lineno]
        assert misplaced({path: b"".join(lines)}, name)
