"""Bad input to `vllm bench dp-balance` gets one clear error each."""

import argparse
import json

import pytest
from vllm.benchmarks.dp_balance import calibrate, recommend, simulate
from vllm.benchmarks.dp_balance.errors import UsageError
from vllm.benchmarks.dp_balance.requests.traces import TraceRow, read_trace
from vllm.benchmarks.dp_balance.results import read_json


def run(module: object, *arguments: str) -> None:
    parser = argparse.ArgumentParser()
    module.add_cli_args(parser)  # type: ignore[attr-defined]
    module.main(parser.parse_args(arguments))  # type: ignore[attr-defined]


NAMED = (
    *("--max-num-seqs 0", "--num-prompts 0", "--num-seeds 0", "--num-prefixes 0"),
    *("--output-len uniform:9:3", "--output-len lognormal:9", "--cost t0=fast"),
    *("--timed-trace-rate-multiplier 0", "--timed-trace-chunk-hash-size 0"),
    *("--timed-trace-sec-multiplier 0", "--timed-trace-start -1"),
    "--api-server-count 0",
)
"""Options that are named as they were given."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((given, given) for given in NAMED),
        ("--policy best", "--policy best: unknown; choose from off, cap"),
        ("--policy interval-0", "--policy interval-0: unknown"),
        ("--policy cap:margin", "--policy cap:margin: margin is not PARAMETER=NUMBER"),
        ("--policy cap:x=1", "--policy cap:x=1: 'x' is not a parameter of balance"),
        ("--policy cap:margin=-1", "--policy cap:margin=-1: margin must be 0 or more"),
        ("--policy off:x=1", "--policy off:x=1: off has no such parameters"),
        ("--max-concurrency 0", "--max-concurrency 0: no request could ever be sent"),
        ("--request-rate 0", "--request-rate 0.0: give a number above 0"),
        ("--burstiness -1", "--burstiness -1.0"),
        ("-dp 0", "--data-parallel-size 0"),
        ("--max-num-batched-tokens 8", "--max-num-batched-tokens 8: less than"),
        ("--num-gpu-blocks 100", "--num-gpu-blocks 100: .* needs 314 blocks of 16"),
        ("--num-speculative-tokens 2", "2 --synth.* None: give a rate for each draft"),
        ("--synthetic-acceptance-rates 0.5", "tokens 0 .* 0.5: give a rate for each"),
        ("--spec-tokens 1 --synthetic-acceptance-rates x", "rates x: give a rate for"),
        ("--spec-tokens -1", "--num-speculative-tokens -1"),
        (
            "--spec-tokens 2 --synthetic-acceptance-rates 0.5,0.6",
            "rates 0.5,0.6: give chances from 0 to 1, none more than the one before",
        ),
        ("--spec-tokens 1 --synthetic-acceptance-rates nan", "rates nan: give chances"),
        (
            "--max-num-seqs 9 --max-num-batched-tokens 9 --spec-tokens 1 "
            "--synthetic-acceptance-rates 1",
            "--max-num-batched-tokens 9: not enough for 9 requests with their drafts",
        ),
        ("--policy trtllm:x=1", "--policy trtllm:x=1: trtllm has no such parameters"),
        (
            "--policy trtllm:batching_wait_iters=0.5",
            "batching_wait_iters must be a whole number from 0, not 0.5",
        ),
        ("--input-len many", "--input-len many: not a distribution"),
        ("--cost t9=1", "--cost t9=1: give NAME=NUMBER"),
        ("--cost t0=-1", "cost model: t0 is -1.0"),
        ("--dataset-path missing.jsonl", "missing.jsonl: cannot be read"),
        ("--dataset-name timed_trace", "give its --dataset-path"),
        ("--self-timed", "only supported with --dataset-name timed_trace"),
        ("--prefix-share 1", "--prefix-share 1.0: it is a share"),
        ("--calibration missing.json", "missing.json: cannot be read as JSON"),
    ],
)
def test_option(arguments, message):
    with pytest.raises(UsageError, match=message):
        run(simulate, *arguments.split())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "holds no request"),
        ("no json", "line 1: not a JSON object"),
        ('{"prompt": [1], "output_tokens": 3}\n[]', "line 2: not a JSON object"),
        ('{"output_tokens": 3}', "line 1: has no prompt"),
        ('{"prompt": "hello", "output_tokens": 3}', "give --tokenizer"),
        ('{"prompt": [1], "output_tokens": 0}', "both must be whole numbers"),
        ('{"prompt": [1]}', "None output tokens"),
        ('{"prompt_tokens": "3", "output_tokens": 1}', "'3' prompt tokens"),
        ('{"total_input_tokens": 9}', "--save-detailed"),
    ],
)
def test_trace(lines, message, tmp_path):
    (path := tmp_path / "trace.jsonl").write_text(lines)
    with pytest.raises(UsageError, match=message):
        read_trace(path)


def test_traces_that_vllm_bench_serve_accepts(tmp_path):
    (path := tmp_path / "trace.jsonl").write_text(
        '{"prompt": "a b c", "output_tokens": 7}\n\n'
        '{"prompt": "a", "prompt_tokens": 5, "output_tokens": 2}\n'
    )
    rows = read_trace(path, lambda text: len(text.split())).rows
    assert rows == [TraceRow(3, 7), TraceRow(5, 2)]
    path.write_text(json.dumps({"input_lens": [4, 5], "output_lens": [1, 2]}))
    assert read_trace(path).rows == [TraceRow(4, 1), TraceRow(5, 2)]


def test_file_of_another_version_or_kind(tmp_path):
    said = {"format": "dp-balance calibrate", "format_version": 99}
    (path := tmp_path / "result.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match=r"version 1 \(it says .*99\]"):
        read_json(path, "calibrate")
    with pytest.raises(UsageError, match="not a file of `vllm bench dp-balance simul"):
        read_json(path, "simulate")


def test_calibration_without_constants(tmp_path):
    said = {"format": "dp-balance calibrate", "format_version": 1}
    (path := tmp_path / "result.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match="has no cost model"):
        run(simulate, "--calibration", str(path))


def test_calibrate(tmp_path):
    (path := tmp_path / "some.log").write_text("INFO nothing of interest\n")
    with pytest.raises(UsageError, match="--enable-logging-iteration-details"):
        run(calibrate, "-dp", "2", "--server-log", str(path))
    with pytest.raises(UsageError, match="--data-parallel-size 1"):
        run(calibrate, "-dp", "1", "--server-log", str(path))


def test_recommend():
    with pytest.raises(UsageError, match="--policy interval-2: a server does not"):
        run(recommend, "--policy", "interval-2")
    with pytest.raises(UsageError, match="name a policy to compare it with"):
        run(recommend, "--policy", "off")
