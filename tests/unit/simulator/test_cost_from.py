"""The cost model that a server has learned, and that simulations take."""

import json

import pytest

from small_server import answering
from verbs import run
from vllm_balance.errors import UsageError
from vllm_balance.simulator import simulate
from vllm_balance.simulator.cost_from import cost_of

LEARNED = {
    "decode": 0.05,
    "fixed": 0.01,
    "own": 0.6,
    "shared": 0.2,
    "padding": 0.0,
    "attention": 0.16,
}


def page(learned: dict[str, float]) -> str:
    name = "vllm:dp_balance_step_cost_seconds"
    of_ranks = (
        f'{name}{{engine="{rank}",part="{part}"}} {seconds + 0.01 * rank - 0.005}\n'
        for part, seconds in learned.items()
        for rank in (0, 1)
    )
    gauge = 'vllm:num_requests_running{engine="0"} 0.0\n'
    return f"# TYPE {name} gauge\n{''.join(of_ranks)}# TYPE x gauge\n{gauge}"


def test_what_a_server_has_learned_is_taken(tmp_path, capsys):
    with answering(lambda *_: page(LEARNED)) as url:
        found = cost_of(url, 4000)
        save = f"--save-result --result-dir {tmp_path} --result-filename a.json"
        load = "--num-prompts 40 --output-len 9 --policy off --cost phi=0.5"
        options = f"{load} --max-num-batched-tokens 4000 --cost-from {url} {save}"
        run(simulate, *options.split())
    assert (found.t0, found.a, found.b) == pytest.approx((0.05, 0, 2e-4))
    assert (found.c, found.attention, found.phi) == pytest.approx((0.01, 1e-8, 0.25))
    assert found.padded == 0
    used = cost_of(str(tmp_path / "a.json"), 1)
    assert (used.b, used.phi) == (pytest.approx(2e-4), 0.5)
    assert used.attention == found.attention


def test_a_server_that_has_learned_nothing_is_refused():
    with (
        answering(lambda *_: page({})) as url,
        pytest.raises(UsageError, match=f"{url}/metrics: has no .* adaptive"),
    ):
        cost_of(url, 4096)


def test_what_a_trial_has_learned_is_taken(tmp_path):
    report = tmp_path / "report.json"
    head = {"format": "dp-balance trial", "format_version": 1}
    report.write_text(json.dumps({**head, "learned_seconds": LEARNED}))
    found = cost_of(str(report), 4000)
    assert (found.t0, found.b) == pytest.approx((0.05, 2e-4))
    report.write_text(json.dumps({**head, "learned_seconds": {}}))
    expected = f"{report}: has no learned_seconds of all parts; .* adaptive"
    with pytest.raises(UsageError, match=expected):
        cost_of(str(report), 4000)
    report.write_text('{"format": "x"}')
    with pytest.raises(UsageError, match="not a file of `vllm-balance trial"):
        cost_of(str(report), 4000)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        *((each, "has no cost model") for each in (None, {"t0": 1})),
        ({"t0": 1, "a": True, "b": 1, "c": 1}, "result.json: cost model: a is True"),
    ],
)
def test_a_file_without_constants_is_refused(cost, message, tmp_path):
    said = {"format": "dp-balance simulate", "format_version": 1}
    (path := tmp_path / "result.json").write_text(
        json.dumps(said | {"scenario": {"cost": cost}})
    )
    with pytest.raises(UsageError, match=message):
        run(simulate, "--cost-from", str(path))
