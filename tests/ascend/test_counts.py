"""What the emulated device counts, read step by step."""

import json

import pytest

import counts
from counts import PRODUCTS, read


def step(rank, tokens, ranks, name="execute_model", products=(6, 6), sent=100):
    """The lines of one step with one layer of experts, as the device writes them."""
    return [
        {"kind": "step", "name": name, "rank": rank, "tokens": tokens},
        {"kind": "loads", "tokens": tokens, "ranks": ranks},
        {"kind": "hccl", "name": "all_gather", "ranks": 2, "bytes": sent},
        *[
            {"kind": "operator", "name": PRODUCTS, "shapes": [[9, 4]], "rows": rows}
            for rows in products
        ],
    ]


def write(folder, *processes):
    for number, lines in enumerate(processes):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{number}.jsonl").write_text(text)


WARM_UP = [{"kind": "operator", "name": PRODUCTS, "shapes": [[1, 4]], "rows": 1}]
END = [{"kind": "step", "name": "execute_model", "rank": 0, "tokens": 0}]


def test_steps_are_those_that_all_ranks_make_together(tmp_path):
    write(
        tmp_path,
        WARM_UP + step(0, 5, [5, 1]) + step(0, 1, [1, 1]) + END,
        step(1, 1, [5, 1], "_dummy_run", products=(2, 4)) + step(1, 1, [1, 1]),
    )
    ((first, second),) = read(tmp_path)  # of the last one, all may not be written
    assert (first.rank, first.tokens, first.ranks, first.idle) == (0, 5, (5, 1), False)
    assert (second.tokens, second.idle) == (1, True)
    assert first.calls == {"all_gather": 1, PRODUCTS: 2}
    assert first.sent == {"all_gather": 100}
    assert (first.rows, second.rows) == (6, 3)


def test_ranks_that_are_not_in_the_same_step_are_refused(tmp_path):
    write(tmp_path, step(0, 5, [5, 1]) * 2, step(1, 1, [1, 1]) * 2)
    with pytest.raises(ValueError, match="step 0 is not the same one"):
        read(tmp_path)


def test_a_rank_without_steps_is_refused(tmp_path):
    write(tmp_path, step(1, 1, [1, 1]) * 2)
    with pytest.raises(ValueError, match="expected steps of ranks 0, 1"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "sent"),
    [("all_gather", 300), ("all_reduce", 150), ("reduce_scatter", 75)],
)
def test_what_stays_on_a_rank_is_not_sent(name, sent):
    assert counts.sent({"name": name, "ranks": 4, "bytes": 100}) == sent
