"""Traces of real traffic are read: Mooncake's lines, CSV with a head, and sessions."""

import json
import os
from pathlib import Path

import pytest

from vllm_balance.errors import UsageError
from vllm_balance.simulator.files import read_lines
from vllm_balance.simulator.rank.limits import RankLimits
from vllm_balance.simulator.requests import traces
from vllm_balance.simulator.requests.arrivals import ClientTraffic
from vllm_balance.simulator.requests.traces import TimedTrace, TraceRow, read_trace
from vllm_balance.simulator.requests.workload import traced_requests
from vllm_balance.simulator.scenario import Scenario, Workload, simulate
from vllm_balance.simulator.step_time.model import DEEPSEEK_V3_1

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:33.4590290,1555,19
"""
OF_AZURE = [(4808, 10), (3180, 8), (1555, 19)]
AZURE_HEAD = AZURE.partition("\n")[0]
MOONCAKE = [
    {"timestamp": 27000, "input_length": 600, "output_length": 5, "hash_ids": [46, 47]},
    {"timestamp": 30000, "input_length": 512, "output_length": 1, "hash_ids": [46]},
    {"timestamp": 30000, "input_length": 9, "output_length": 1, "hash_ids": [7]},
]


def written(tmp_path: Path, content: object) -> Path:
    if not isinstance(content, str):
        assert isinstance(content, list)
        content = "\n".join(map(json.dumps, content))
    read_trace.cache_clear()
    (path := tmp_path / "trace").write_text(content)
    return path


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("2023-11-16T18:15:46Z", "2023-11-16T18:15:47.5Z", 1.5),
        ("2023-11-16 18:15:46+02:00", "2023-11-16 16:15:47", 1.0),
        ("5", "45.5", 40.5),
    ],
)
def test_csv_has_dates_or_seconds(first, second, seconds, tmp_path):
    text = f"{AZURE_HEAD}\n{first},1,2\n{second},3.0,4\n"
    rows = read_trace(written(tmp_path, text)).rows
    assert rows[1].time == pytest.approx(seconds, abs=1e-6)
    assert rows[1].prompt_len == 3


@pytest.mark.parametrize(
    ("old", "new"), [("\n", "\r\n"), ("4808", '"4808"'), (",", ";"), (",", "\t")]
)
def test_csv_as_programs_write_it(old, new, tmp_path):
    path = written(tmp_path, "\ufeff" + AZURE.replace(old, new))
    assert [row[:2] for row in read_trace(path).rows] == OF_AZURE


def test_csv_with_other_names_and_requests_that_failed(tmp_path, capsys):
    text = "seconds,model,in,out\n5,a,472,18\n45,a,1087,0\n118,b,417,276\n"
    options = TimedTrace(None, 2.0, "seconds", "in", "out")
    rows = read_trace(written(tmp_path, text), options).rows
    assert rows == [TraceRow(472, 18, 0.0), TraceRow(417, 276, 226.0)]
    assert "left out 1 of 3 requests, which have no answer" in capsys.readouterr().err


@pytest.mark.parametrize("unit", [1e3, 1e9])
def test_times_since_1970_in_a_shorter_unit_are_no_seconds(unit, tmp_path, capsys):
    """Of a table, whose times are read as seconds, and of Mooncake's milliseconds."""
    stamps = [int(unit * (1.7e9 + number)) for number in range(3)]
    lines = "".join(f"{stamp},9,5\n" for stamp in stamps)
    for content in (
        f"{AZURE_HEAD}\n{lines}",
        [MOONCAKE[0] | {"timestamp": 1e3 * stamp} for stamp in stamps],
    ):
        path = written(tmp_path, content)
        with pytest.raises(UsageError, match="give their unit with --timed-trace-sec"):
            read_trace(path)
    path = written(tmp_path, f"{AZURE_HEAD}\n{lines}")
    rows = read_trace(path, TimedTrace(sec_multiplier=1 / unit)).rows
    assert [row.time for row in rows] == pytest.approx([0, 1, 2], abs=1e-3)
    assert read_trace(written(tmp_path, f"{AZURE_HEAD}\n0,9,5\n")).rows
    assert "unless they are dates, are read as seconds" in capsys.readouterr().err


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(fifo := tmp_path / "fifo")
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(UsageError, match=f"{path}: is no regular file; write"):
            read_trace(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path)


def test_mooncake_counts_milliseconds_and_chunks_of_512(tmp_path, capsys):
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert trace.chunk_size == 512
    assert {row.hash_ids for row in trace.rows} == {(46, 47), (46,), (7,)}
    times = [row.time or 0.0 for row in trace.rows]
    assert 0 < times[1] < times[2] < 6, "spread over the 3 s of their stamp"
    assert "read as Mooncake's, whose times are milli" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stamps", "step"),
    [
        ([5, 5, 45, 118, 118, 120], 1),
        ([5.0, 5.0, 45.004, 118.0], 1),
        ([60, 60, 60, 120, 300], 60),
        ([27, 27, 29.999, 30.001, 30, 33], 3),
    ],
)
def test_times_of_a_step_are_spread_over_it(stamps, step, tmp_path, capsys):
    text = "".join(f"{stamp},9,5\n" for stamp in stamps)
    times = [
        row.time for row in read_trace(written(tmp_path, f"{AZURE_HEAD}\n{text}")).rows
    ]
    assert len({*times}) == len(times)
    assert f"multiples of {step} s; requests are spread" in capsys.readouterr().err
    for time, stamp in zip(times, sorted(stamps), strict=True):
        assert abs(time - (stamp - min(stamps))) < step + 0.005


@pytest.mark.parametrize(
    "stamps", [[0, 100, 200, 200], [0, 3000, 6000], [5, 5, 5], [3000, 3000, 3002, 2998]]
)
def test_times_that_are_exact_are_kept(stamps, tmp_path):
    lines = [MOONCAKE[0] | {"timestamp": stamp} for stamp in stamps]
    rows = read_trace(written(tmp_path, lines)).rows
    assert [row.time for row in rows] == pytest.approx(
        [(stamp - min(stamps)) / 1e3 for stamp in sorted(stamps)]
    )


def test_labels_and_units_are_as_told(tmp_path, capsys):
    line = {"t": 5000, "in": 3, "out": 4, "h": [1]}
    options = TimedTrace(64, 0.5, "t", "in", "out", "h")
    trace = read_trace(written(tmp_path, [line, line | {"t": 5002}]), options)
    assert trace.chunk_size == 64
    assert trace.rows == [TraceRow(3, 4, 0.0, (1,)), TraceRow(3, 4, 1.0, (1,))]
    assert capsys.readouterr().err == "", "nothing was assumed"


def test_lengths_alone_will_do(tmp_path):
    path = written(tmp_path, [{"input_length": 5, "output_length": 7}])
    assert read_trace(path).rows == [TraceRow(5, 7)]
    with pytest.raises(UsageError, match="timed_trace: the dataset has no times"):
        replay(path)


def test_window(tmp_path):
    path = written(tmp_path, AZURE)
    rows = read_trace(path, TimedTrace(start=0.05, duration=1.0)).rows
    assert [row.prompt_len for row in rows] == [3180]
    with pytest.raises(UsageError, match=r"no request in the window .* lasts 29 s"):
        read_trace(path, TimedTrace(start=60.0))


def of_seconds(tmp_path: Path, stamps: list[int]) -> Path:
    """A table whose prompts have a token more than their time has seconds."""
    lines = "".join(f"{stamp}.5,{stamp + 1},5\n" for stamp in stamps)
    return written(tmp_path, f"{AZURE_HEAD}\n{lines}")


def test_of_a_file_in_order_nothing_behind_the_window_is_read(tmp_path, monkeypatch):
    path = of_seconds(tmp_path, list(range(20_000)))
    made, read, row = [], [], traces._row
    monkeypatch.setattr(
        traces,
        "read_lines",
        lambda *of: (read.append(line) or line for line in read_lines(*of)),
    )
    monkeypatch.setattr(traces, "_row", lambda *of: made.append(1) or row(*of))
    kept = read_trace(path, TimedTrace(start=100.0, duration=50.0)).rows
    assert [row.prompt_len for row in kept] == list(range(101, 151))
    assert len(made) == 50, "other rows make no object"
    assert len(read) < 1000


@pytest.mark.parametrize(
    "stamps",
    [
        [*range(1000), *range(900, 50, -1)],
        [*range(50), 0, *range(50, 7778), 60, *range(7778, 20_000)],
        [*range(1, 9000), 0],
    ],
)
def test_of_a_file_out_of_order_no_request_of_the_window_is_lost(stamps, tmp_path):
    path = of_seconds(tmp_path, stamps)
    kept = read_trace(path, TimedTrace(start=20.0, duration=90.0)).rows
    first = min(stamps)
    wanted = sorted(stamp for stamp in stamps if 20 <= stamp - first < 110)
    assert [row.prompt_len - 1 for row in kept] == wanted


SESSIONS = [
    {
        "block_size": 64,
        "requests": [
            {"in": 256, "out": 9, "think_time": 0.0, "hash_ids": [1, 2, 3, 4]},
            {"type": "subagent", "requests": []},
            {"in": 320, "out": 0, "think_time": 300.0, "hash_ids": [1, 2, 3, 7, 8]},
        ],
    },
    # The same in short.
    {
        "block_size": 64,
        "requests": [[0, 256, 9, 1, 0, 0, [[1, 4]]], [9, 320, 0, 1, 300, 3, [[7, 2]]]],
    },
]


def runs_of(count: int) -> dict[str, object]:
    """A session with so many hash ids."""
    return {"block_size": 64, "requests": [[0, 9, 9, 1, 0, 0, [[1, count]]]]}


OTHERS = {
    "no json": "",
    "": "",
    "[" * 99999: "",
    "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18": " line 2",
    '{"input_lens": [4, 5], "output_lens": [1, 2]}': " line 1",
    '{\n "input_lens": [\n': " line 1",
    '[{"conversations": []}]': "",
    json.dumps(MOONCAKE[0]) + "\n[]": " line 2",
}


@pytest.mark.parametrize("content", OTHERS)
def test_what_is_of_another_format_gets_the_sentence_that_helps(content, tmp_path):
    path = written(tmp_path, content)
    said = f"^{path}{OTHERS[content]}: .*give lines like .*docs/simulate.md how to conv"
    with pytest.raises(UsageError, match=said):
        read_trace(path)


def test_files_that_are_no_text(tmp_path):
    (path := tmp_path / "trace").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(UsageError, match="is no text in UTF-8; unpack it if"):
        read_trace(path)


STAMP = "2023-11-16 18:17:33.4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (AZURE_HEAD, "holds no request; line 1 is 'TIMESTAMP"),
        (AZURE + "yesterday,1,2\n", "line 5: timestamp is 'yesterday'"),
        (AZURE + "nan,1,2\n", "line 5: timestamp is 'nan'"),
        (AZURE + f"{STAMP},1\n", "line 5: output tokens are None"),
        (AZURE + "9" * 200_000, "line 5: field larger than"),
        ([MOONCAKE[0] | {"hash_ids": "x"}], "line 1: hash_ids is not a list"),
        ([MOONCAKE[0] | {"timestamp": 10**400}], "line 1: timestamp is 1000"),
        ([MOONCAKE[0] | {"input_length": 10**400}], "line 1: prompt tokens are 1000"),
        ([MOONCAKE[0] | {"input_length": True}], "line 1: prompt tokens are True"),
        ([MOONCAKE[0] | {"output_length": 0}], "no request with an answer"),
        ([MOONCAKE[0], MOONCAKE[0] | {"timestamp": 1e300}], "times are 1e.297 s apart"),
        ([MOONCAKE[0], MOONCAKE[0] | {"timestamp": None}], "1 of 2 requests have a t"),
        (
            [MOONCAKE[0], {"session_id": "a", "delay": 2000, "input_length": 1}],
            "line 2: has a delay and no timestamp, as later turns of AIPerf",
        ),
        ([{"block_size": 0, "requests": []}], "line 1: block_size is 0"),
        ([runs_of(10**30)], "line 1: request 1 of the session cannot be read"),
    ],
)
def test_bad_line_is_named(content, message, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=message):
        read_trace(path)


def test_sessions_of_agents(tmp_path):
    trace = read_trace(written(tmp_path, SESSIONS))
    assert trace.chunk_size == 64
    for first in (0, 2):
        rows = trace.rows[first : first + 2]
        assert [row[:2] for row in rows] == [(256, 9), (320, 1)]
        assert [list(row.hash_ids) for row in rows] == [[1, 2, 3, 4], [1, 2, 3, 7, 8]]
        assert [row.think for row in rows] == [None, 60.0]


def test_sessions_share_what_is_said_and_repeated_ones_are_others(tmp_path):
    trace = read_trace(written(tmp_path, SESSIONS))
    requests = traced_requests(trace, 6, session_shared=130)
    assert [request.session for request in requests] == [0, 0, 1, 1, 2, 2]
    ids = [list(request.hash_ids) for request in requests]
    assert len({tuple(each[:2]) for each in ids}) == 1
    assert ids[0][:3] == ids[1][:3]
    assert len({each[2] for each in ids}) == 3
    assert [len(each) for each in ids] == [4, 5] * 3
    short = traced_requests(trace, 3, session_turns=1)
    assert [request.session for request in short] == [0, 1, 2]
    everywhere = [one | {"hash_id_scope": "global"} for one in SESSIONS[::-1]]
    requests = traced_requests(read_trace(written(tmp_path, everywhere)), 6)
    ids = [list(request.hash_ids) for request in requests]
    assert ids[0] == ids[2] == [1, 2, 3, 4] != ids[4]


def replay(path: Path, multiplier: float = 1.0) -> list[float]:
    scenario = Scenario(
        RankLimits(2, 4, 4096),
        DEEPSEEK_V3_1,
        Workload(None, trace=path),
        ClientTraffic(self_timed=True, rate_multiplier=multiplier),
    )
    return [request.sent for request in simulate(scenario, "off").requests]


def test_requests_are_sent_at_their_times(tmp_path):
    path = written(tmp_path, AZURE)
    assert replay(path) == pytest.approx([0, 0.052, 29.479069])
    assert replay(path, 2.0) == pytest.approx([0, 0.026, 14.7395345])


def test_more_prompts_than_a_trace_with_times_has_are_refused(tmp_path):
    trace = read_trace(written(tmp_path, AZURE))
    assert len(traced_requests(trace, 2)) == 2
    with pytest.raises(UsageError, match="--num-prompts 4: the trace has 3 requests"):
        traced_requests(trace, 4)
