# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Policy `adaptive`: hold prefills while waiting is cheaper than what it saves.

After each step, on every rank alike, from the rows of all ranks::

    learn what steps cost, and how decodes fare
    for each rank r:                                  # its rent
        share[r] = decoding[r] + pending[r], over the mean of the ranks
        waiting[r] += dt * pending[r] * share[r] * (1 + age[r]^2 / usual_age^2) / 2
        waiting[r] = 0 if nothing is pending on r

    1. if nobody decodes: open                        # nothing is delayed by a release
    2. if the costs are unknown: open, but hold once enough decode
    3. work[r] = tokens to compute of the pending prompts, deep ones dearer
       if a first token keeps its limit now but not a step later: release
       B = the budget, at most a step, with the largest
           sum_r waiting[r] * weight * min(1, B / work[r]) - waste(B)
       if that is negative for every B: release prompts that are cheap alone, for as
           long as such releases may take time; else hold
    4. if the next decode ends more requests than wait for the release: hold
       otherwise: release B tokens on every rank

    waiting[r] *= 1 - min(1, B / work[r])             # what is released has paid
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .cost import (
    FORGETTING_STEPS,
    LEAST_CHUNK,
    CostFit,
    StepCost,
    best_prefill_budget,
    whole_step,
)
from .decision import OPEN, Decision, Learned
from .flow import Flow
from .rows import SECONDS, Snapshot

_IDLE = OPEN._replace(reason="idle")
_HOLD = Decision(admit=False, prefill_budget=0, reason="waiting_cost")
_DECODES_FIRST = _HOLD._replace(reason="decodes_first")
_LEARN = OPEN._replace(reason="learn")
_LEARN_BY_HOLD = _HOLD._replace(reason="learn")
_DECODING = 3
"""Steps that an answer must last for holds to gain by it; see `_first_decode`."""
_LONGEST_UNKNOWN = 30.0
"""Seconds of prefills beside decodes after which a step without a prefill is made in
any case; see `_first_decode`."""
_FIRST_TOKENS = 0.004
"""Share of the mean end-to-end time that is given for earlier first tokens while all
slots are in use; see `_slack`."""
_LEAST_LOAD = 0.07
"""Share of the slots in use below which no more is given: at most 3 % of the mean."""
_CHEAP = 0.9
"""Share of what a usual prompt wastes, released alone, up to which one is cheap."""
_FOR_CHEAP = 0.15
"""Share of everybody's time that cheap prompts may take by going at once. Most of it
holds would have taken anyway."""
_MOST_CHEAP = 20
"""Releases of a usual prompt for which time is kept."""
_SPARE = 0.9
"""Share of the limit per token up to which decodes are delayed for first tokens."""
_LEAST_STRETCH = 1e-3
"""Least share of the time that prefills are taken to need; what holds could save is
less than can be measured then."""


class LatencyLimits(NamedTuple):
    """What users are to wait at most, in seconds; 0 is no limit."""

    ttft: float = 0.0
    """For the first token, if decodes keep the other limit."""
    tpot: float = 0.0
    """For each other token, on the mean of an answer, for the sake of first ones."""


NO_LIMITS = LatencyLimits()


class LearnedState(NamedTuple):
    """What was learned of the device and of the traffic."""

    fit: CostFit = CostFit()
    cost: StepCost | None = None
    """What the fit says; None before any step without prefill was timed."""
    attention: float = 0.0
    """Tokens that attending to one costs."""
    flow: Flow = Flow()
    served: frozenset[int] = frozenset()
    """Ranks that have ever had a request: what never comes cannot be waited for."""

    def work(self, tokens: Sequence[int], attended: Sequence[int]) -> Sequence[float]:
        price = self.attention
        if not price:
            return tokens
        return [n + price * pairs for n, pairs in zip(tokens, attended, strict=True)]


class Cheap(NamedTuple):
    """What is needed to tell cheap prompts, and to let them go at once."""

    usual: float = 0.0
    """Tokens of a prompt, as they cost, a mean of the last ones."""
    pending: Sequence[int] = ()
    """Requests that were pending on each rank after the last step."""
    allowed: float = 0.0
    """Person-seconds that releases of cheap ones may take."""

    def see(self, pending: Sequence[int], work: Sequence[float]) -> "Cheap":
        """Adds prompts that have become pending on a rank without others."""
        usual = self.usual
        for now, before, tokens in zip(pending, self.pending, work, strict=False):
            if now and not before:
                share = now / (now + FORGETTING_STEPS) if usual else 1.0
                usual += share * (tokens / now - usual)
        return Cheap(usual, pending, self.allowed)


class WaitAccount(NamedTuple):
    """How long requests have waited."""

    number: float = float(FORGETTING_STEPS)
    """How many waited in the recent steps, summed."""
    squares: float = 0.0
    """Their squared ages in µs², summed; 0 at first, so that first holds are short."""
    waiting: Sequence[float] = ()
    """Person-seconds of waiting on each rank that no release has paid for."""


class AdaptiveState(NamedTuple):
    """All that `adaptive` remembers, as a value."""

    known: LearnedState = LearnedState()
    waits: WaitAccount = WaitAccount()
    unknown: float = 0.0
    """Seconds of decodes beside prefills, before any step without one was timed."""
    nobody: bool = True
    """Whether nobody decoded after the last step."""
    cheap: Cheap = Cheap()

    def next_wave(self) -> "AdaptiveState":
        """Without what was waited; with what is known of the costs and requests."""
        return self._replace(
            known=self.known._replace(flow=self.known.flow.next_wave()),
            waits=self.waits._replace(waiting=()),
            nobody=True,
            cheap=self.cheap._replace(pending=()),
        )


class Adaptive:
    """Waiting against waste, with a budget for all ranks that fits their work.

    What counts is the time average of the requests in the ranks: by Little's law that
    is the mean end-to-end time at a given rate, and the throughput at a given number
    in flight. Both sides are person-seconds: a hold of dt seconds adds ``dt * n_r`` for
    the n_r requests that are pending on rank r, and a release wastes time
    (`StepCost.waste`) of all N requests, the more so as prefills stretch the time of
    those that decode: its *price* is ``waste * N * stretch``.

    A release is due once the waiting has reached the price: rent-or-buy, which with
    even arrivals makes the cycles that renewal theory finds best. While the price stays
    as it is, that pays at most twice what the best choice in hindsight would have; a
    prompt that comes to another rank just behind a release can make it four times and
    more, so the guard bounds what holds take.
    """

    def __init__(self) -> None:
        self.state = AdaptiveState()
        self.limits = NO_LIMITS

    @property
    def learned(self) -> Learned | None:
        """What steps take, once a step without prefill was timed."""
        known = self.state.known
        return known.cost and Learned(known.cost, known.fit.resets)

    def reset(self) -> None:
        """Forgets what was waited, and keeps what is known of costs and requests."""
        self.state = self.state.next_wave()

    def forget_costs(self) -> None:
        """The times until now were of other steps; what decodes take stays."""
        fit = self.state.known.fit.forget()
        known = self.state.known._replace(fit=fit, cost=fit.cost)
        self.state = self.state._replace(known=known)

    def decide(self, snapshot: Snapshot) -> Decision:
        decision, self.state = step(self.state, snapshot, self.limits)
        return decision


def step(
    state: AdaptiveState, snapshot: Snapshot, limits: LatencyLimits = NO_LIMITS
) -> tuple[Decision, AdaptiveState]:
    """The decision on the next step, and what is remembered after it."""
    seconds = max(snapshot.step_time_us) * SECONDS
    known = _learn(state.known, snapshot, seconds)
    waits = _wait(state.waits, snapshot, seconds)
    unknown = state.unknown
    if known.cost is None and state.known.flow.decoding:
        unknown += seconds
    work = known.work(snapshot.pending_tokens, snapshot.pending_attended)
    cheap = state.cheap.see(snapshot.pending, work)
    nobody = not any(snapshot.decoding)
    # Clients may ask again whose answers have ended in the last step.
    if nobody and (state.nobody or known.cost is None):
        decision = _IDLE
    elif known.cost is None:
        decision = _first_decode(len(known.served), snapshot, unknown)
        unknown = unknown if decision.admit else 0.0
    else:
        decision, cheap = _weigh(
            known, known.cost, waits.waiting, work, snapshot, cheap, seconds, limits
        )
        if nobody and decision.admit:
            decision = _IDLE
    budget = decision.prefill_budget
    if budget != 0:
        released = math.inf if budget is None else budget
        waiting = [
            waited * (1 - released / tokens) if released < tokens else 0.0
            for waited, tokens in zip(waits.waiting, work, strict=True)
        ]
        waits = waits._replace(waiting=waiting)
    state = AdaptiveState(known, waits, unknown, nobody, cheap)
    if budget is None and sum(snapshot.decoding) <= sum(snapshot.pending):
        return decision, state  # a cut prompt takes more steps, in which others decode
    return Decision(*decision[:3], known.attention, LEAST_CHUNK), state


def _learn(known: LearnedState, snapshot: Snapshot, seconds: float) -> LearnedState:
    fit, cost, attention, flow, served = known
    if len(served) < len(snapshot.running):
        loads = zip(snapshot.running, snapshot.waiting, strict=True)
        served = served.union([rank for rank, load in enumerate(loads) if any(load)])
    prefills, attended = snapshot.prefill_tokens, snapshot.prefill_attended
    prefilled = sum(prefills)
    largest = max(snapshot.max_tokens)
    if seconds:  # the first step of a wave has no step time
        if prefilled:
            work = known.work(prefills, attended)
            _, mean, idle = _shares(prefills, largest)
            # The fullest rank; of equal ones, the one that attends to most.
            _, pairs, most = max(zip(work, attended, prefills, strict=True))
            fit = fit.observe(
                seconds, most / largest, mean, idle, pairs / (largest * largest)
            )
        elif flow.decoding:  # else nobody decoded
            fit = fit.observe(seconds, 0.0, 0.0, 1.0)
        cost = fit.cost
        if len(served) == 1:
            attention = 0.0  # others can neither wait nor have as much
        elif cost is not None:
            attention = cost.per_attended(largest)
    flow = flow.observe(
        requests=_requests(snapshot),
        decoding=sum(snapshot.decoding),
        ended=sum(snapshot.ended),
        prefilled=prefilled,
        seconds=seconds,
        decode=cost and cost.decode,
    )
    return LearnedState(fit, cost, attention, flow, served)


def _wait(waits: WaitAccount, snapshot: Snapshot, seconds: float) -> WaitAccount:
    """Adds a step's waiting, more on full ranks and for old requests.

    A rank with more requests than others ends last, and must not wait for these;
    one that is alone must not keep those waiting who wait for a slot. Half of it
    grows with the square of the age, over the mean square of all that waited lately,
    so that the last first tokens come earlier.
    """
    pending, decoding = snapshot.pending, snapshot.decoding
    ranks, requests = len(pending), sum(pending)
    keep = 1 - 1 / FORGETTING_STEPS
    number = waits.number * keep + requests
    if not requests:
        return WaitAccount(number, waits.squares * keep, [0.0] * ranks)
    ages = zip(pending, snapshot.pending_age_us, strict=True)
    old = [n * age * age for n, age in ages]
    squares = waits.squares * keep + sum(old)
    step = max(snapshot.step_time_us)
    usual = max(squares / number, step * step, 1)
    half = seconds / 2 * ranks / max(1, requests + sum(decoding))
    if ranks == 1:
        decoding = (_requests(snapshot) - requests,)
    before = waits.waiting if len(waits.waiting) == ranks else [0.0] * ranks
    rows = zip(before, pending, decoding, old, snapshot.pending_tokens, strict=True)
    waiting = [
        waited + half * (n + d) * (n + squared / usual) if tokens else 0.0
        for waited, n, d, squared, tokens in rows
    ]
    return WaitAccount(number, squares, waiting)


def _first_decode(ranks: int, snapshot: Snapshot, unknown: float) -> Decision:
    """A step without prefill, as soon as it is worth it; until then, all are open.

    It may take seconds, for which all wait, so it is made while as many decode as are
    pending, and three times those that begin in a step. If too few do, it is made once
    prefills beside decodes have taken `_LONGEST_UNKNOWN` that many times.
    """
    prefills, left = snapshot.prefill_tokens, sum(snapshot.pending_tokens)
    pending = sum(snapshot.pending)
    begin = max(sum(n > 0 for n in prefills), sum(prefills) * pending / max(1, left))
    times = max(1.0, max(pending, _DECODING * begin) / sum(snapshot.decoding))
    late = unknown >= _LONGEST_UNKNOWN * times
    if ranks > 1 and (times == 1 or late):
        return _LEARN_BY_HOLD
    return _LEARN


def _weigh(
    known: LearnedState,
    cost: StepCost,
    waiting: Sequence[float],
    work: Sequence[float],
    snapshot: Snapshot,
    cheap: Cheap,
    seconds: float,
    limits: LatencyLimits,
) -> tuple[Decision, Cheap]:
    """A release, if one is worth it, or due, or cheap; else a hold."""
    largest, ranks = max(snapshot.max_tokens), len(known.served)
    requests, stretch = max(1, _requests(snapshot)), known.flow.stretch
    persons, one = requests * stretch, min(1.0, cheap.usual / largest)
    decodes_keep = cost.decode * stretch <= _SPARE * (limits.tpot or math.inf)
    budget = 0.0
    reason = "gain"
    if prompts := any(work):
        load = requests / max(1, sum(snapshot.max_running))
        weight = (1 + _slack(load, stretch)) / persons
        waited = zip(work, waiting, strict=True)
        rows = sorted([(tokens, each * weight) for tokens, each in waited if tokens])
        limit = max(1, largest - max(snapshot.running))
        whole, due = whole_step(limit, known.attention), 0.0
        given = rows, ranks, whole, largest, cost
        if limits.ttft and decodes_keep:
            later = cost.prefill_seconds(one, one / ranks, 1 - 1 / ranks) / 3
            later += cost.decode
            due = _due(cost, rows, work, snapshot, whole, limits.ttft, later)
        budget, _ = best_prefill_budget(*given, due)
        if due:
            reason = "first_token"
        elif budget and ranks > 1:
            served = [min(tokens, budget) for tokens in work]
            if _decodes_first(known.flow, cost, served, snapshot):
                return _DECODES_FIRST, cheap
    # Who waits for a slot waits for an end, and in a closed loop time is throughput.
    have_slots = requests == sum(snapshot.decoding) + sum(snapshot.pending)
    if have_slots and decodes_keep and ranks > 1 and not known.flow.is_closed:
        usual = cost.alone(one, ranks)
        allowed = cheap.allowed + _FOR_CHEAP * requests * seconds
        allowed = min(allowed, _MOST_CHEAP * usual * persons)
        if prompts and not budget and allowed > 0 and usual > cost.fixed:
            # Waste grows from `fixed` in proportion to the tokens.
            share = (_CHEAP * usual - cost.fixed) / (usual - cost.fixed)
            most = share * one * largest
            shares = [min(tokens, whole) for tokens, _ in rows]
            if least := max([n for n in shares if n <= most], default=0):
                reason = "cheap"
                budget, gain = best_prefill_budget(*given, least)
                allowed += gain * persons
        cheap = Cheap(cheap.usual, cheap.pending, allowed)
    if not budget:
        return _HOLD, cheap
    # Rounded up, so that nothing is left of a prompt for which it is meant.
    tokens = int(budget) + (known.attention > 0)
    return Decision(True, tokens, reason), cheap


def _due(
    cost: StepCost,
    rows: Sequence[tuple[float, float]],
    work: Sequence[float],
    snapshot: Snapshot,
    whole: float,
    ttft: float,
    later: float,
) -> float:
    """Tokens of the ranks whose oldest request keeps its limit now, but not later.

    Later is after one more step of decodes and a third of a usual prefill, which may
    come first. 0 if there is no such rank.
    """
    largest, share = max(snapshot.max_tokens), len(rows) / len(work)

    def takes(tokens: float) -> float:
        full = min(tokens, whole) / largest
        seconds = cost.prefill_seconds(full, full * share, 1 - share)
        return math.ceil(tokens / whole) * (cost.decode + seconds)

    too_new = max(0.0, (ttft - takes(rows[-1][0]) - later) / SECONDS)
    due = [
        min(tokens, whole)
        for tokens, age_us in zip(work, snapshot.in_time_age_us, strict=True)
        if age_us > too_new and 0 <= ttft - age_us * SECONDS - takes(tokens) < later
    ]
    return max(due, default=0.0)


def _slack(load: float, stretch: float) -> float:
    """How much more waiting weighs for the sake of first tokens; 0 is not at all.

    The cycle goes with the root of what waiting weighs. One that is s times shorter
    than the best one loses ``(s + 1 / s) / 2 - 1`` of what prefills add to the time
    of decodes, at most ``stretch - 1``: s is such that this is `_FIRST_TOKENS` of the
    mean end-to-end time over `load`, the share of the slots that is in use.
    """
    prefills = max(stretch - 1, _LEAST_STRETCH)
    given = _FIRST_TOKENS / max(load, _LEAST_LOAD) / prefills
    shorter = 1 + given + math.sqrt(given * (given + 2))
    return shorter * shorter - 1


def _decodes_first(
    flow: Flow, cost: StepCost, served: Sequence[float], snapshot: Snapshot
) -> bool:
    """Whether decoding ends more requests in the same time than wait for it.

    A step more of decodes spares those that end in it the whole release, and delays
    all that have no first token by the step.
    """
    seconds = cost.prefill_seconds(*_shares(served, max(snapshot.max_tokens)))
    decoding = sum(snapshot.decoding)
    waiting = _requests(snapshot) - decoding
    return decoding * flow.ending * seconds > waiting * cost.decode


def _requests(snapshot: Snapshot) -> int:
    return sum(snapshot.running) + sum(snapshot.waiting)


def _shares(tokens: Sequence[float], largest: int) -> tuple[float, float, float]:
    """Tokens of the fullest and the mean rank, by the largest step; idle ranks."""
    ranks = len(tokens)
    return (
        max(tokens) / largest,
        math.fsum(tokens) / ranks / largest,
        sum(not n for n in tokens) / ranks,
    )
