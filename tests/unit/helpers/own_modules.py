"""The project's own Python."""

from pathlib import Path

from balance_tools.run import listed_by_git

ROOT = Path(__file__).parents[3]


def own_modules() -> dict[str, str]:
    """Path to text of every module, tests left out."""
    names = listed_by_git(ROOT, "--", "*.py")
    found = [name for name in names if not name.startswith("tests/")]
    assert {"setup.py", "tools/balance_tools/run.py"} <= set(found)
    return {name: (ROOT / name).read_text() for name in found}
