"""Traces of real traffic are read as their publishers write them."""

import gzip
import json
import os
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance.errors import UsageError
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.traces import TimedTrace, TraceRow, read_trace
from vllm.benchmarks.dp_balance.requests.workload import traced_requests
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:33.4590290,1555,19
"""
OF_AZURE = [(4808, 10), (3180, 8), (1555, 19)]
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = [
    {"timestamp": 27000, "input_length": 600, "output_length": 5, "hash_ids": [46, 47]},
    {"timestamp": 30000, "input_length": 512, "output_length": 1, "hash_ids": [46]},
    {"timestamp": 30000, "input_length": 9, "output_length": 1, "hash_ids": [7]},
]
BAILIAN = [
    {
        "chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40,
        "output_length": 316, "type": "text", "turn": 1, "hash_ids": [8, 9],
    }
]  # fmt: skip


def written(tmp_path: Path, content: object) -> Path:
    if not isinstance(content, str):
        assert isinstance(content, list)
        content = "\n".join(map(json.dumps, content))
    (path := tmp_path / "trace").write_text(content)
    return path


def test_azure(tmp_path):
    rows = read_trace(written(tmp_path, AZURE)).rows
    assert [row[:2] for row in rows] == OF_AZURE
    assert [row.time for row in rows] == pytest.approx([0, 0.052, 29.479069])
    later = read_trace(written(tmp_path, AZURE_2024)).rows  # with a zone
    assert later[1].time == pytest.approx(0.99007)


def test_burstgpt_without_its_failures(tmp_path):
    rows = read_trace(written(tmp_path, BURSTGPT)).rows
    assert rows == [TraceRow(472, 18, 0.0), TraceRow(417, 276, 113.0)]


def test_mooncake_counts_milliseconds_and_chunks_of_512(tmp_path, capsys):
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert trace.chunk_size == 512
    assert {row.hash_ids for row in trace.rows} == {(46, 47), (46,), (7,)}
    times = [row.time or 0.0 for row in trace.rows]
    assert 0 < times[1] < times[2] < 6, "spread over the 3 s of their stamp"
    assert "are spread over them at random" in capsys.readouterr().err


def test_bailian_counts_seconds_and_chunks_of_16(tmp_path):
    later = BAILIAN[0] | {"timestamp": 62.5}
    trace = read_trace(written(tmp_path, [*BAILIAN, later]))
    assert trace.chunk_size == 16
    assert [row.time for row in trace.rows] == pytest.approx([0, 1.386])


@pytest.mark.parametrize("stamps", [[0, 100, 200, 200], [0, 3000, 6000], [5, 5, 5]])
def test_times_that_are_exact_are_kept(stamps, tmp_path, capsys):
    lines = [MOONCAKE[0] | {"timestamp": stamp} for stamp in stamps]
    rows = read_trace(written(tmp_path, lines)).rows
    first = stamps[0]
    assert [row.time for row in rows] == pytest.approx(
        [(s - first) / 1e3 for s in stamps]
    )
    assert "read as Mooncake's, whose times are milliseconds" in capsys.readouterr().err


def test_units_that_are_assumed_are_said(tmp_path, capsys):
    line = {"timestamp": 1, "input_length": 3, "output_length": 4}
    read_trace(written(tmp_path, [line]))
    assert "its times are read as seconds" in capsys.readouterr().err


AZURE_HEAD = AZURE.partition("\n")[0]
STAMPS = (
    ("2023-11-16 18:15:46", "2023-11-16T18:15:47.25", 1.25),
    ("2023-11-16 18:15:46.1234567Z", "2023-11-16 18:15:46.6234567Z", 0.5),
    ("2023-11-16 18:15:46+02:00", "2023-11-16 16:15:47Z", 1.0),
    ("2023-11-16T11:15:46.5-0530", "2023-11-16T16:45:47.5+00:00", 1.0),
    ("2023-12-31 23:59:59 UTC", "2024-01-01 01:00:00.5+01", 1.5),
)


@pytest.mark.parametrize(("first", "second", "seconds"), STAMPS)
def test_stamps_with_zones_and_fractions(first, second, seconds, tmp_path):
    text = f"{AZURE_HEAD}\n{first},1,2\n{second},3,4\n"
    rows = read_trace(written(tmp_path, text)).rows
    assert rows[1].time == pytest.approx(seconds, abs=1e-6)
    assert rows[1].prompt_len == 3


HOW = {
    "crlf": ("\n", "\r\n"),
    "cr": ("\n", "\r"),
    "quotes": ("4808", '"4808"'),
    "quotes after spaces": (",ContextTokens", ', "ContextTokens"'),
    "empty rows": ("10\n", "10\n,,\n"),
}


def as_written(text: str, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(text.encode())
    if how in ("utf-16", "utf-8-sig"):
        return text.encode(how)
    return text.replace(*HOW.get(how, (",", how))).encode()


@pytest.mark.parametrize("how", ["gzip", "utf-16", "utf-8-sig", ";", "\t", *HOW])
def test_files_as_people_have_them(how, tmp_path):
    (path := tmp_path / "trace").write_bytes(as_written(AZURE, how))
    assert [row[:2] for row in read_trace(path).rows] == OF_AZURE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (AZURE.encode("utf-16-le"), "UTF-16 without a byte order mark"),
        (gzip.compress(AZURE.encode())[:-9], "cannot be read"),
        (b"PK\x03\x04more", "is a zip file; unpack it"),
        (AZURE.replace("Gen", '"Gen').encode(), "line 4: no CSV .unexpected end"),
        (bytes(range(256)), "cannot be read|is no text"),
    ],
)
def test_files_that_are_no_text(data, message, tmp_path):
    (path := tmp_path / "trace").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_trace(path)


def test_a_pipe_is_read_once():
    reading, writing = os.pipe()
    os.write(writing, AZURE.encode())
    os.close(writing)
    first, again = (read_trace(Path(f"/dev/fd/{reading}")) for _ in range(2))
    os.close(reading)
    assert len(first.rows) == len(again.rows) == 3


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\u0085"])
def test_lines_end_at_line_feeds_alone(end, tmp_path):
    line = {"prompt": f"a{end}b", "prompt_tokens": 5, "output_tokens": 7}
    content = "\n".join([json.dumps(line, ensure_ascii=False)] * 2)
    assert read_trace(written(tmp_path, content)).rows == [TraceRow(5, 7)] * 2


def test_labels_and_units_are_as_told(tmp_path):
    line = {"t": 5000, "in": 3, "out": 4, "h": [1]}
    options = TimedTrace(64, 0.5, "t", "in", "out", "h")
    trace = read_trace(written(tmp_path, [line, line | {"t": 5002}]), None, options)
    assert trace.chunk_size == 64
    assert [row.prompt_len for row in trace.rows] == [3, 3]
    assert trace.rows[1].hash_ids == (1,)


def test_saved_result_has_times(tmp_path):
    result = {"input_lens": [4, 5], "output_lens": [1, 2], "start_times": [9.0, 8.5]}
    result["burstiness"] = float("inf")  # as JSON does not have it
    for indent in (None, 1):
        rows = read_trace(written(tmp_path, json.dumps(result, indent=indent))).rows
        assert rows == [TraceRow(5, 2, 0.0), TraceRow(4, 1, 0.5)]


def test_requests_of_a_saved_result_that_failed_are_counted(tmp_path, capsys):
    result = {
        "input_lens": [4, 0, 6, 7],
        "output_lens": [1, 0, 3, 0],
        "start_times": [9.0, 0.0, 9.5, 10.0],
        "errors": ["", "refused", "cut off", ""],
    }
    rows = read_trace(written(tmp_path, json.dumps(result))).rows
    assert rows == [TraceRow(4, 1, 0.0)]
    assert "left out 3 of 4 requests, which have no answer" in capsys.readouterr().err


def test_window(tmp_path):
    path = written(tmp_path, AZURE)
    rows = read_trace(path, None, TimedTrace(start=0.05, duration=1.0)).rows
    assert [row.prompt_len for row in rows] == [3180]
    with pytest.raises(UsageError, match=r"no request in the window .* lasts 29 s"):
        read_trace(path, None, TimedTrace(start=60.0))


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (AZURE + "yesterday,1,2\n", "line 5: TIMESTAMP, .* are \\['yesterday'"),
        (AZURE + "2023-11-16 18:17:33.4,1\n", "line 5: .* two whole numbers"),
        (AZURE + "2023-11-16 18:17:33.4,0,3\n", "line 5: 0 prompt tokens"),
        (BURSTGPT + "7,GPT-4,x,3,3,API log\n", "line 5: Timestamp"),
        ([MOONCAKE[0], {"timestamp": "x"}], "line 2: None prompt tokens"),
        ([MOONCAKE[0] | {"timestamp": "x"}], "line 1: timestamp is 'x'"),
        ([MOONCAKE[0] | {"hash_ids": "x"}], "line 1: hash_ids is not a list"),
        ([MOONCAKE[0] | {"timestamp": 10**400}], "line 1: timestamp is 1000"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "is 'NaN'; exp"),
        ([MOONCAKE[0] | {"input_length": 10**400}], "line 1: 1000.* prompt tokens"),
        ([MOONCAKE[0], MOONCAKE[0] | {"timestamp": 1e300}], "times are 1e.297 s apart"),
        ([MOONCAKE[0], {"prompt_tokens": 5, "output_tokens": 3}], "1 of 2 requests"),
        ([MOONCAKE[0], {"delay": 500}], "line 2: has a delay and no timestamp"),
        (BURSTGPT + "nan,GPT-4,3,3,6,API log\n", "line 5: Timestamp"),
        (BURSTGPT + "9,GPT-4,1e400,3,6,API log\n", "line 5: Timestamp"),
        (AZURE + "2023-11-16 18:17:33Z,1,1\n", "line 5: .*only some rows name"),
        (AZURE + "2023-02-30 18:17:33,1,1\n", "line 5: TIMESTAMP"),
        (AZURE + "2023-11-16 18:17:33,1\x00,1\n", "is no text"),
        ([{"input_lens": [1, 2], "output_lens": [1]}], "are of 2, 1, 2 and 2 requests"),
        ([{"input_lens": [1], "output_lens": [0]}], "no request with an answer"),
        ("[" * 99999, "line 1: not a JSON object .*recursion"),
        *(
            ([{"block_size": size, "requests": []}], "line 1: block_size is")
            for size in (0, -1, 1.5, None, 10**99)
        ),
        ([SESSIONS[0], SESSIONS[0] | {"block_size": 32}], r"is one of \[32, 64\]"),
        ([runs_of(10**30)], "line 1: request 1 of the session cannot be read"),
        ([{"block_size": 64, "requests": [{"in": 5}]}], "line 1: request 1 of the"),
        ([{"prompt": [{"role": "user"}], "output_tokens": 3}], "prompt is .*a list of"),
        ([{"when": 1, "input_length": 3}], "line 1: has no prompt and no timestamp"),
    ],
)
def test_bad_line_is_named(content, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        read_trace(written(tmp_path, content))


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
    everywhere = [session | {"hash_id_scope": "global"} for session in SESSIONS]
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


def test_a_dataset_without_times_is_refused(tmp_path):
    lengths = [{"prompt_tokens": 3, "output_tokens": 4}]
    with pytest.raises(UsageError, match="--self-timed: the dataset has no times"):
        replay(written(tmp_path, lengths))
