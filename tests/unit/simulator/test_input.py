"""Bad input to `vllm-balance` gets one clear error each."""

import json
import re

import pytest

from verbs import run
from vllm_balance.errors import UsageError
from vllm_balance.simulator import recommend, simulate
from vllm_balance.simulator.results import read_json

NAMED = (
    *("--output-len uniform:9:3", "--output-len lognormal:9", "--cost t0=fast"),
    *("--input-len 1e18", "--input-len lognormal:9:999", "--output-len normal:9:1e300"),
    *("--policy cap:margin=nan", "--policy adaptive:window=inf"),
)
"""Options that are named as they were given."""
NUMBERS = {
    "0": "data-parallel-size num-prompts max-concurrency num-seeds num-prefixes "
    "api-server-count session-turns timed-trace-chunk-hash-size request-rate "
    "burstiness timed-trace-sec-multiplier timed-trace-duration",
    "-1": "num-speculative-tokens session-shared-tokens timed-trace-start",
    "1e18": "data-parallel-size num-prompts",
    "1.5": "max-num-seqs",
    "99999999": "max-num-seqs",
    "1": "prefix-share",
    "nan": "request-rate burstiness prefix-share ttft-budget-ms",
    "inf": "timed-trace-start timed-trace-rate-multiplier",
}
"""By number, options that do not take it."""


@pytest.mark.parametrize(
    ("option", "number"),
    [(f"--{one}", number) for number, all_ in NUMBERS.items() for one in all_.split()],
)
def test_numbers_that_mean_nothing_are_refused(option, number, capsys):
    with pytest.raises(SystemExit):
        run(recommend, option, number)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(rf"argument {option}\b.*: {number}: give a ", last)


UNUSED = (
    "--request-rate 3 --dataset-name timed_trace --dataset-path x",
    "--burstiness 2 --dataset-name timed_trace --dataset-path x",
    "--input-len 5 --dataset-path x",
    "--prefix-share 0.5 --dataset-path x",
    "--burstiness 2",
    "--num-prefixes 3",
    "--session-turns 3",
    "--timed-trace-start 3",
    "--timed-trace-rate-multiplier 3 --dataset-path x",
    "--result-filename x",
)


@pytest.mark.parametrize("options", UNUSED)
def test_an_option_that_changes_nothing_is_refused(options):
    with pytest.raises(UsageError, match=f"^{options.split(' --')[0]}"):
        run(simulate, *options.split())


def test_constants_are_of_one_place(capsys):
    with pytest.raises(SystemExit):
        run(simulate, "--cost-from", "x", "--cost-preset", "a3-dp4-tp4")
    assert "not allowed with argument --cost-from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((given, given) for given in NAMED),
        ("--policy best", "--policy best: invalid choice; choose from off, cap"),
        ("--policy sglang-30", "--policy sglang-30: invalid choice; .* adaptive.$"),
        ("--policy off:", "--policy off:: '' is not PARAMETER=NUMBER"),
        ("--policy cap:margin=1,margin=2", "'margin=2' is not .*, each once"),
        ("--policy cap:x=1", "--policy cap:x=1: 'x' is not a parameter of balance"),
        ("--policy cap:margin=-1", "--policy cap:margin=-1: .* 0 to 999999"),
        ("--policy cap:margin=1.5", "'margin=1.5' is not .* a whole number from 0"),
        ("--policy off:x=1", "--policy off:x=1: off has no parameters"),
        ("--max-num-batched-tokens 8", "--max-num-batched-tokens 8: less than"),
        ("--num-gpu-blocks 100", "--num-gpu-blocks 100: .* needs 314 blocks of 16"),
        ("--num-speculative-tokens 2", "2 --synth.* None: give a rate for each draft"),
        ("--num-prompts 999 --output-len 9999999 --max-num-seqs 4", "takes at most 1e"),
        ("--spec-tokens 1 --synthetic-acceptance-rates x", "rates x: give a rate for"),
        (
            "--spec-tokens 2 --synthetic-acceptance-rates 0.5,0.6",
            "rates 0.5,0.6: give chances from 0 to 1, none more than the one before",
        ),
        (
            "--max-num-seqs 9 --max-num-batched-tokens 9 --spec-tokens 1 "
            "--synthetic-acceptance-rates 1",
            "--max-num-batched-tokens 9: not enough for 9 requests with their drafts",
        ),
        ("--input-len many", "--input-len many: not a distribution"),
        ("--cost t9=1", "--cost t9=1: give NAME=NUMBER"),
        ("--cost t0=1,t0=2", "--cost t0=2: give NAME=NUMBER, each once"),
        ("--cost b=1e308", "cost model: b is 1e.308"),
        ("--dataset-path missing.jsonl", "missing.jsonl: cannot be read"),
        ("--request-rate 1e-6", "requests are sent for .*e.09 s; at most 1e.09 can be"),
        ("--dataset-name timed_trace", "give its --dataset-path"),
        ("--cost-from missing.json", "missing.json: is no file, and no address"),
    ],
)
def test_option(arguments, message):
    with pytest.raises(UsageError, match=message):
        run(simulate, *arguments.split())


def test_file_of_another_version_or_kind(tmp_path):
    said = {"format": "dp-balance trial", "format_version": 99}
    (path := tmp_path / "result.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match=r"version 1 \(it says .*99\]"):
        read_json(path, "trial")
    with pytest.raises(UsageError, match="not a file of `vllm-balance simul"):
        read_json(path, "simulate")


def test_recommend():
    with pytest.raises(UsageError, match="--policy cap:margin=3: a server has off, c"):
        run(recommend, "--policy", "cap:margin=3")
    with pytest.raises(UsageError, match="name a policy to compare it with"):
        run(recommend, "--policy", "off")


def test_one_rank_compares_what_does_something_there(capsys):
    run(simulate, "--data-parallel-size", "1", "--num-prompts", "64")
    table = capsys.readouterr().out
    assert "adaptive" in table
    assert "align" not in table
    with pytest.raises(UsageError, match="--policy cap: needs ranks that wait"):
        run(simulate, "--data-parallel-size", "1", "--policy", "off", "cap")
