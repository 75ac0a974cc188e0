"""A plugin for another vLLM is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.rebase.supported_release import SupportedRelease
from balance_tools.upstream.lock import load_lock
from balance_tools.wheel.plan import check_pair

PATHS = Paths.find()


def test_the_pin_and_releases_of_one_minor_fit() -> None:
    lock = load_lock(PATHS.lock)
    check_pair(lock)
    check_pair(replace(lock, vllm=replace(lock.vllm, version="0.23.7")))
    check_pair(SupportedRelease.find(PATHS, "0.30").lock())


def test_a_release_without_a_plugin_says_so() -> None:
    lock = SupportedRelease.find(PATHS, "0.33").lock()
    found = r"vllm-ascend for vllm 0\.33\.0, found 0\.23\.0\.post1; .* reference alone"
    with pytest.raises(ToolError, match=found):
        check_pair(lock)
