"""Snapshots for the tests of the policies: by hand, at random, and from a model."""

from collections import namedtuple

from hypothesis import strategies as st

from vllm_balance.core.policies.rows import Limits, Row, Snapshot

SLOTS = 8
MAX_TOKENS = 512

FIELDS = Row._fields + Limits._fields
NOTHING = namedtuple("Rank", FIELDS)(*[0] * len(FIELDS))
"""A rank's row, and its limits."""
IDLE = NOTHING._replace(
    step=1, step_time_us=40_000, max_running=SLOTS, max_tokens=MAX_TOKENS
)


def snapshot(rows):
    rows, width = list(rows), len(Row._fields)
    limits = [row[width:] for row in rows]
    return Snapshot.from_rows([row[:width] for row in rows], limits)


def running(count, pending=0, tokens=100, **fields):
    """A rank that decodes so many requests and has others of so many tokens pending."""
    pending_fields = {
        "decoding": count,
        "waiting": pending,
        "pending": pending,
        "pending_tokens": pending * tokens,
    }
    return IDLE._replace(running=count, **pending_fields | fields)


@st.composite
def rows(draw):
    count = draw(st.integers(0, SLOTS))
    pending = draw(st.integers(0, SLOTS - count))
    age = draw(st.just(0) | st.integers(0, 100_000_000)) if pending else 0
    return IDLE._replace(
        running=count,
        decoding=draw(st.integers(0, count)),
        ended=draw(st.integers(0, SLOTS)),
        waiting=pending + draw(st.integers(0, 5)),
        pending=pending,
        pending_tokens=draw(st.integers(pending, 4000)) if pending else 0,
        prefill_tokens=draw(st.sampled_from([0, 0, 1, 100, MAX_TOKENS])),
        pending_attended=draw(st.integers(0, 10**6)) if pending else 0,
        prefill_attended=draw(st.sampled_from([0, 1, 10**6])),
        pending_age_us=age,
    )


@st.composite
def histories(draw, max_ranks=4, max_steps=6):
    """Rows of several steps, of any content: each step a list with a row per rank."""
    ranks = draw(st.integers(1, max_ranks))
    steps = []
    for step in range(draw(st.integers(1, max_steps))):
        time = draw(st.just(0) | st.integers(0, 2_000_000))
        steps.append(
            [draw(rows())._replace(step=step, step_time_us=time) for _ in range(ranks)]
        )
    return steps


class Ranks:
    """Ranks in virtual time: 40 ms a step, 60 per 100 prompt tokens of the fullest."""

    def __init__(self, count):
        self.now = 0
        self.step = 0
        self.seconds = 0.0
        self.prefilled = [0] * count
        self.held = [0] * count
        self.ended = [0] * count
        self.running = [[] for _ in range(count)]  # output tokens left
        self.waiting = [[] for _ in range(count)]  # [prompt left, output, since]

    def arrive(self, rank, prompt, output):
        self.waiting[rank].append([prompt, output, self.now])

    def pending(self, rank):
        return self.waiting[rank][: SLOTS - len(self.running[rank])]

    def snapshot(self):
        rows = []
        for rank, running in enumerate(self.running):
            pending = self.pending(rank)
            ages = [int((self.now - since) * 1e6) for _, _, since in pending]
            rows.append(
                IDLE._replace(
                    step=self.step,
                    running=len(running),
                    decoding=len(running),
                    ended=self.ended[rank],
                    waiting=len(self.waiting[rank]),
                    pending=len(pending),
                    pending_tokens=sum(prompt for prompt, _, _ in pending),
                    prefill_tokens=self.prefilled[rank],
                    step_time_us=int(self.seconds * 1e6),
                    pending_age_us=max(ages, default=0),
                )
            )
        return snapshot(rows)

    def advance(self, decision):
        for rank in range(len(self.running)):
            left = MAX_TOKENS - len(self.running[rank])
            if decision.prefill_budget is not None:
                left = min(left, decision.prefill_budget)
            started = []
            budget = left
            admissible = self.pending(rank)
            if decision.admit:
                for request in admissible:
                    used = min(left, request[0])
                    request[0] -= used
                    left -= used
                    if not request[0]:
                        started.append(request)
            self.waiting[rank] = [r for r in self.waiting[rank] if r[0]]
            before = self.running[rank]
            self.running[rank] = [n - 1 for n in before if n > 1]
            self.ended[rank] = len(before) - len(self.running[rank])
            self.running[rank] += [output for _, output, _ in started]
            self.prefilled[rank] = budget - left if decision.admit else 0
            served = self.prefilled[rank] > 0 or not admissible
            self.held[rank] = 0 if served else self.held[rank] + 1
        self.seconds = 0.040 + 0.0006 * max(self.prefilled)
        self.now += self.seconds
        self.step += 1

    def unfinished(self):
        return sum(map(len, self.running)) + sum(map(len, self.waiting))
