"""A target in which a name that we use is gone is refused, by that name."""

import shutil

import pytest

from balance_tools.contract.check import missing, vanished_symbols
from balance_tools.contract.fit import findings, read_pin
from balance_tools.contract.used_words import Use, words_of
from balance_tools.drift.symbols import Modules
from balance_tools.paths import Paths
from balance_tools.series.apply import load_series
from rebase_samples import edit

OF_THE_GATE = {"skipped_waiting", "is_prefill_chunk", "dp_group", "worker_cls"}
OF_THE_DISPATCH = {
    *("core_engines", "lb_engines", "client_count", "client_index"),
    *("pooling_params", "data_parallel_rank", "prompt_token_ids", "prompt_embeds"),
    *("outputs", "new_token_ids", "finished_requests"),
}
# What `first_of` chooses, and a method and an attribute that upstream asks for.
OTHERS = {"max_num_running_reqs", "execute_dummy_batch", "ray_device_key"}


@pytest.fixture(scope="module")
def pin():
    found = read_pin(Paths.find())
    assert found is not None
    return found


def test_a_word_that_is_gone_is_refused_by_name(pin):
    words = words_of(pin.tree)
    uses: dict[str, list[Use]] = {}
    for use in pin.uses:
        assert use.line > 0
        (name,) = words & {*use.names}
        uses.setdefault(name, []).append(use)
    assert missing(pin.uses, words) == []
    for name in OF_THE_GATE | OF_THE_DISPATCH | OTHERS:
        found = missing(pin.uses, words - {name})
        assert len(found) == len(uses[name]), name
        assert all(name in str(finding) for finding in found)
        assert all(finding.file and finding.line for finding in found)


def test_each_relied_on_symbol_that_is_gone_is_refused_by_name(pin, tmp_path):
    patches = load_series(Paths.find().patches("vllm")).patches
    assert vanished_symbols(patches, Modules(pin.tree)) == []
    for patch in patches[:2]:
        said = [str(one) for one in vanished_symbols([patch], Modules(tmp_path))]
        relied_on = patch.header.relies_on
        assert len(said) == len(relied_on) > 0
        assert all(names[0] in one for names, one in zip(relied_on, said, strict=True))


def test_the_type_checker_sees_what_names_do_not_show(pin, tmp_path):
    """A module and a function that are gone, a changed signature, and a variable."""
    tree, left_out = tmp_path / "upstream", shutil.ignore_patterns("*.json", "*.so")
    shutil.copytree(pin.tree / "vllm", tree / "vllm", ignore=left_out)
    series = load_series(pin.paths.patches("vllm"))
    scheduler = tree / "vllm/v1/core/sched/scheduler.py"
    edit(scheduler, "request_queue = self._select_w", "chosen = self._select_w")
    killing, metric = "kill_process_tree(pid: int", "create_metric_per_engine"
    edit(tree / "vllm/utils/system_utils.py", killing, f"{killing}, why: str")
    edit(tree / "vllm/v1/metrics/utils.py", metric, "create_metrics")
    (tree / "vllm/lora/punica_wrapper/punica_cpu.py").unlink()
    found = findings(pin, series, tree, tmp_path / "root")
    said = [str(finding) for finding in found]
    assert any("watch.py" in one and "kill_process_tree" in one for one in said)
    assert any("scheduler.py" in one and "request_queue" in one for one in said), said
    assert any("metrics.py" in one and "create_metric_per" in one for one in said)
    assert any("lora.py" in one and "punica_cpu" in one for one in said)
    assert len(found) < 10, said
