"""What a rank is believed to have in its KV cache, and how answers correct it."""

import random
from itertools import accumulate

import pytest
from vllm.v1.core.sched.balance.prefix_memory import (
    PrefixMemory,
    SentPrefix,
    chunk_tokens,
)

TOKENS = 100


def keys(text):
    """A chunk for each letter, with all before it."""
    return list(accumulate(text))


def memory(chunks=1000):
    return PrefixMemory(chunks, TOKENS)


def serve(remembers, text):
    remembers.computed(remembers.sent(keys(text)))


def has(remembers, text):
    return remembers.found(keys(text)) // TOKENS


def test_a_prompt_finds_the_longest_beginning_of_earlier_ones():
    tested = memory()
    serve(tested, "abcd")
    serve(tested, "abxy")
    found = {text: has(tested, text) for text in ("abcq", "abxyz", "bcd", "")}
    assert found == {"abcq": 3, "abxyz": 4, "bcd": 0, "": 0}


def test_a_chunk_is_whole_blocks():
    sizes = {size: chunk_tokens(size) for size in (16, 128, 512, 528, 1000)}
    assert sizes == {16: 512, 128: 512, 512: 512, 528: 528, 1000: 1000}


def test_what_was_used_least_recently_goes_first_ends_before_beginnings():
    tested = memory(chunks=6)
    serve(tested, "abc")
    serve(tested, "def")
    serve(tested, "ab")
    serve(tested, "gh")
    assert [has(tested, text) for text in ("abc", "def", "gh")] == [2, 2, 2]
    serve(tested, "uvwxyz123")
    assert has(tested, "uvwxyz123") == tested.held() // TOKENS == 6


def test_an_answer_that_says_otherwise_takes_all_that_was_used_no_later():
    tested = memory()
    for text in ("old", "sys-a", "sys-b", "new"):
        serve(tested, text)
    sent = tested.sent(keys("sys-a-goes-on"))
    tested.computed(sent, 4 * TOKENS)  # of five: "a" was lost, "sys-" was not
    assert [has(tested, text) for text in ("old", "sys-b", "new")] == [0, 5, 3]
    assert has(tested, "sys-a-goes-on") == 13, "it has just computed that"


@pytest.mark.parametrize("cached", [201, 300, 1000])
def test_a_part_of_a_chunk_or_more_than_believed_corrects_nothing(cached):
    tested = memory()
    serve(tested, "old")
    serve(tested, "abc")
    tested.computed(tested.sent(keys("abc")), cached)
    assert (has(tested, "old"), has(tested, "abc")) == (3, 3)


def test_what_is_being_computed_need_not_be_found():
    """The second waits for what the first computes; of older ones it tells nothing."""
    tested = memory()
    serve(tested, "old")
    first = tested.sent(keys("abcd"))
    second = tested.sent(keys("abce"))
    tested.computed(second, 0)
    tested.computed(first, 0)
    assert has(tested, "old") == 3
    assert has(tested, "abcd") == has(tested, "abce") == 4


def test_a_prompt_on_its_way_is_found_until_it_is_given_up_and_moves_nothing():
    """It evicts nothing, and what it would use again becomes no younger."""
    tested = memory(chunks=6)
    for text in ("abc", "def"):
        serve(tested, text)
    sent = [tested.sent(keys(text)) for text in ("abcd", "abce", "uvwxyz", "uv")]
    found = {text: has(tested, text) for text in ("abcd", "def", "uvwxyz")}
    assert found == {"abcd": 4, "def": 3, "uvwxyz": 6}
    tested.given_up(sent[0])
    tested.given_up(sent[2])
    assert (has(tested, "abcd"), has(tested, "uvwxyz")) == (3, 2)
    for each in (sent[1], sent[3]):
        tested.given_up(each)
    assert (has(tested, "uv"), tested.held()) == (0, 6 * TOKENS)
    serve(tested, "ghi")
    assert (has(tested, "abc"), has(tested, "def")) == (0, 3)


def test_nothing_is_remembered_beyond_the_bound_whatever_happens():
    """No chunk is remembered without its beginning, nor are too many."""
    rng = random.Random(3)
    tested = memory(chunks=300)
    under_way: list[SentPrefix] = []
    computed: set[str] = set()
    full = False
    for _ in range(10_000):
        text = "".join(rng.choices("abc", k=rng.randrange(12)))
        before = has(tested, text)
        places = tested._last, tested._on_the_way
        known = [any(key in place for place in places) for key in keys(text)]
        assert known == [number < before for number in range(len(text))]
        under_way.append(tested.sent(keys(text)))
        assert has(tested, text) == len(text) >= before
        if rng.random() < 0.9:
            sent = under_way.pop(rng.randrange(len(under_way)))
            cached = rng.choice((None, 0, rng.randrange(12 * TOKENS)))
            if rng.random() < 0.2:
                tested.given_up(sent)
            else:
                tested.computed(sent, cached)
                computed.update(map(str, sent.keys))
        full = full or tested.held() == 300 * TOKENS
        assert tested.held() <= 300 * TOKENS
    for sent in under_way:
        tested.given_up(sent)
    for key in tested._last:
        assert has(tested, str(key)) == len(str(key))
    assert full
    assert not tested._on_the_way
    assert computed.issuperset(map(str, tested._last))
