"""The report of a bump names limits that the release has and the pin has not."""

from types import SimpleNamespace

from balance_tools.paths import Paths
from balance_tools.rebase.limits import limits_markdown

BEFORE = """
VLLM_MAX_N: int = 16
VLLM_PORT: int | None = None
"""
AFTER = f"""
{BEFORE}
if TYPE_CHECKING:
    VLLM_MAX_STOPS: int = 4
    VLLM_MAX_PIXELS: int = 9
    VLLM_RENDER_TIMEOUT: float = 30.0
    VLLM_COLOUR: str = "auto"
"""


def tree(folder, text):
    (folder / "vllm").mkdir(parents=True)
    if text:
        (folder / "vllm/envs.py").write_text(text)
    return folder


def test_new_limits_are_named_but_for_those_that_we_have(tmp_path):
    (fixes := tmp_path / "vllm/fixes").mkdir(parents=True)
    (fixes / "media.py").write_text('PIXELS = "VLLM_MAX_PIXELS"\n')
    old, new = tree(tmp_path / "old", BEFORE), tree(tmp_path / "new", AFTER)
    without = tree(tmp_path / "none", "")

    def rows(package, old, new):
        moved = SimpleNamespace(package=package, old=old, new=new)
        return limits_markdown(Paths(tmp_path), [moved])

    assert rows("vllm", old, new)[-2:] == [
        "| `VLLM_MAX_STOPS` | `4` |",
        "| `VLLM_RENDER_TIMEOUT` | `30.0` |",
    ]
    assert rows("vllm", old, old) == rows("vllm", old, without) == []
    assert rows("vllm_ascend", old, new) == []
