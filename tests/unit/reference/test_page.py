"""The reference is what the parsers and the sources say."""

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.reference import texts
from balance_tools.reference.page import PAGE_NAME, page
from vllm_balance.policy import KEY

PATHS = Paths.find()


def test_it_is_up_to_date():
    text = (PATHS.root / PAGE_NAME).read_text()
    assert page(PATHS) == text, "run make reference"


def test_an_option_stands_there_once():
    text = page(PATHS)
    assert (
        text.count("`--max-num-seqs`") == text.count("`--data-parallel-balance`") == 1
    )
    assert "As in [vllm-balance simulate](#vllm-balance-sim" in text


@pytest.mark.parametrize("of", [texts.REASONS, texts.LIMITS])
def test_a_text_that_is_missing_or_has_no_use_is_refused(of, monkeypatch):
    monkeypatch.setitem(of, "new", ("", ""))
    with pytest.raises(ToolError, match="found new only here or only there"):
        page(PATHS)
    monkeypatch.delitem(of, "new")
    monkeypatch.delitem(of, name := next(iter(of)))
    with pytest.raises(ToolError, match=f"found {name} only here"):
        page(PATHS)


def test_the_other_variables_are_read_by_us():
    probe = (PATHS.root / "docker/healthcheck.py").read_text()
    key, health = (name.strip("`") for name in texts.VARIABLES)
    assert key == KEY
    assert f'environ.get("{health}"' in probe
