# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What prompts cost ranks that step in lock step: the model, and how it is learned."""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST_CHUNK = 1024
"""Tokens below which attention cuts no chunk. With MLA each chunk projects what is
before it, as long as 410 tokens attend to it. It is also the shortest context at which
a token is taken to cost twice as much."""


def twice_attended(position: int, tokens: int) -> int:
    """Twice the tokens that a chunk attends to: a whole number."""
    return tokens * (2 * position + tokens)


def cost_of(position: int, tokens: int, per_attended: float) -> float:
    """What a chunk costs, with `per_attended` for each token that one attends to."""
    return tokens + per_attended * tokens * (position + tokens / 2)


def whole_step(tokens: int, per_attended: float) -> float:
    """What a step of these tokens may cost: as many behind two such steps."""
    return cost_of(2 * tokens, tokens, per_attended)


def tokens_within(
    budget: float, position: int, tokens: int, per_attended: float, least: int = 1
) -> int:
    """How many tokens of a chunk a budget allows; at least one if it is 1 or more.

    And `least` of them, whatever they attend to, as far as it allows them at the
    beginning of a prompt.
    """
    if budget < 1:
        return 0
    if cost_of(position, tokens, per_attended) <= budget:
        return tokens
    price = 1 + per_attended * position
    root = math.sqrt(price * price + 2 * per_attended * budget)
    cut = int(2 * budget / (price + root))
    return min(tokens, max(1, cut, min(least, int(budget))))


class StepCost(NamedTuple):
    """The model of a step's duration, in seconds.

    ``step = decode
    + [any prefill] * (fixed + own * most + shared * mean + padding * most * idle
    + attention * attended)``

    where `most` and `mean` are the prompt tokens of the fullest and of the mean rank,
    as shares of the largest step (`max_num_batched_tokens`), `idle` is the share of
    the ranks that have none, and `attended` what the tokens of the fullest attend to,
    as a share of that step's square. `shared` cannot be wasted: the ranks pay it
    together anyway (the experts of a MoE layer are spread over them). The others are
    paid by all ranks for the prefill of one.
    """

    decode: float
    """A step without any prefill."""
    fixed: float
    """Added if any rank prefills, however little."""
    own: float
    """Added for a full step of prompt tokens on the fullest rank."""
    shared: float
    """Added for a full step of prompt tokens on every rank."""
    padding: float = 0.0
    """Added for a full step of rows that nobody needs on every rank, where the
    all-to-all is padded."""
    attention: float = 0.0
    """Added for a full step on the fullest rank whose tokens attend each to as many."""

    def per_attended(self, max_tokens: int) -> float:
        """What a token costs more for each that it attends to, as a share of `own`."""
        own = max(self.own * max_tokens, self.attention * LEAST_CHUNK)
        return self.attention / own if own else 0.0

    def waste(self, most: float, mean: float, idle: float) -> float:
        """Seconds of a prefill step that better balance would have saved."""
        unused = self.own * (most - mean) + self.fixed * (1 - mean)
        return unused + self.padding * most * idle

    def alone(self, most: float, ranks: int) -> float:
        """Seconds that it wastes if one of the ranks alone prefills."""
        return self.waste(most, most / ranks, 1 - 1 / ranks)

    def prefill_seconds(
        self, most: float, mean: float, idle: float, attended: float = 0.0
    ) -> float:
        together = self.shared * mean + self.padding * most * idle
        return self.fixed + self.own * most + together + self.attention * attended


def best_prefill_budget(
    work: Sequence[tuple[float, float]],
    ranks: int,
    limit: float,
    max_tokens: int,
    cost: StepCost,
    least: float = 0.0,
) -> tuple[float, float]:
    """The budget B with the largest gain, and that; 0 if none is worth its waste.

    ``gain(B) = sum_r cost_r * min(1, B / p_r)
    - cost.waste(B, mean_r min(p_r, B), share of ranks without work)``

    Between two of the pending tokens p_r the gain is linear in B, so only those and
    the limit are looked at.

    Args:
        work: pending prompt tokens p_r > 0, or what they cost, and waiting
            cost_r (seconds) of each rank that has some, in order of the tokens.
        ranks: how many ranks there are, those without work included.
        limit: the largest budget that a step can take beside its decodes, at least 1.
        max_tokens: tokens of the largest step; the unit of `cost`.
        cost: what prefills cost.
        least: if not 0, the best one of those from it on, worth it or not.
    """
    # Waiting cost and tokens of the ranks that are served whole.
    saved = below = 0.0
    above = len(work)
    # With the costs per token and mean = (below + B * above) / ranks,
    # gain(B) = saved + B * (rate + own + junk) - own * (B - mean) - junk * B
    # - fixed * (1 - mean); all gains below are without the constant -fixed.
    own = cost.own / max_tokens
    slope = (own + cost.fixed / max_tokens) / ranks
    junk = cost.padding / max_tokens * (ranks - len(work)) / ranks
    rate = math.fsum(waited / tokens for tokens, waited in work) - own - junk
    best, best_gain = 0.0, -math.inf if least else cost.fixed
    for tokens, waited in work:
        budget = tokens if tokens < limit else limit
        gain = saved + budget * rate + slope * (below + budget * above)
        if gain >= best_gain and budget >= least:
            best, best_gain = budget, gain
        if tokens >= limit:
            break
        saved += waited
        rate -= waited / tokens
        below += tokens
        above -= 1
    return best, best_gain - cost.fixed


_DECODES = 15
"""Steps without prefill whose median is the decode time."""
_DEVIATION = 20.0
"""Prior standard deviation of the states, as a multiple of the newest step: a full
step takes no longer than this number of those that were seen."""
_SHARED_PRIOR_STEPS = 0.5
"""Weight, in steps, of the prior that what the ranks bear together takes no time. While
a policy makes them prefill alike, only noise tells that from `own`, and `own` is to be
preferred. A hundred steps in which one rank prefills outweigh it."""
FORGETTING_STEPS = 100
"""Steps, or requests that end, over which what is measured fades. Few enough to follow
a day, enough to tell five costs apart."""
_NOISE = 0.1
"""Standard deviation of a step time, as a share of it."""
_CERTAIN = 10.0
"""By how many variances attention must lessen the squares of all errors, or it is 0:
three standard deviations and a bit."""
_USUAL = 1.5
"""Standard deviations up to which errors count in full, larger ones in proportion to
their size (Huber)."""
_SWEEPS = 4
"""Of descent over the states at each step; the next goes on where one has stopped."""
_SURPRISED = 0.3
"""Mean error, as a share of the step, that shows that the costs have changed."""
_SURPRISES = 16
"""Steps with a prefill that it is a mean of."""


_NOTHING = (0.0,) * (len(StepCost._fields) - 1)
_TOGETHER = [StepCost._fields.index(part) - 1 for part in ("shared", "padding")]
"""Where what ranks bear together is among the states, which are without `decode`."""


class CostFit(NamedTuple):
    """Fits `StepCost` by robust least squares with forgetting, within bounds.

    It is a value: `observe` returns the next one. Every step with a prefill says ``step
    - decode = h . x`` of the state ``x = (fixed, own, shared, padding, attention)``,
    with ``h = (1, most, mean, most * idle, attended)``. Kept are sums, ``A`` of ``w h
    h'`` and ``b`` of ``w h (step - decode)``, each step of which forgets a share. The
    state minimises ``x' (A + P) x / 2 - b' x`` within its bounds, by coordinate descent
    from the last one. P, the precision of the prior, follows from the newest step, and
    from A for what the ranks bear together, and is never summed up: so the matrix is
    positive definite and the state bounded, whatever the steps were. If steps go on to
    be other than expected, everything is forgotten.

    While one rank alone prefills, `own` and `padding` cannot be told apart, and need
    not be: their waste is the same then. Prompts of one length do not tell `attention`
    from `own`: there are two states, and the one without attention counts for as long
    as it explains about as much.
    """

    resets: int = 0
    """How often the costs were forgotten because they had changed."""
    decodes: tuple[float, ...] = ()
    """The last steps without prefill, in seconds."""
    decode: float = math.inf
    """Their median."""
    states: tuple[Sequence[float], Sequence[float]] = _NOTHING, _NOTHING
    """The best ones without attention and with it."""
    attends: bool = False
    """Whether the latter is the one that counts."""
    information: Sequence[Sequence[float]] = (_NOTHING,) * len(_NOTHING)
    """A."""
    weighted: Sequence[float] = _NOTHING
    """b."""
    surprise: float = 0.0
    steps: float = 0.0
    """How many steps with a prefill the sums are of, as far as they are remembered."""

    @property
    def cost(self) -> StepCost | None:
        """What is known, or None before a step without prefill was timed."""
        if not self.decodes:
            return None
        return StepCost(self.decode, *self.states[self.attends])

    def forget(self) -> "CostFit":
        """Without all but the time of decodes."""
        return CostFit(self.resets, self.decodes, self.decode)

    def observe(
        self,
        seconds: float,
        most: float,
        mean: float,
        idle: float,
        attended: float = 0.0,
    ) -> "CostFit":
        """With one step more.

        It took `seconds`, above 0; the others are as `StepCost` has them.
        """
        before, decodes = self.decode, self.decodes
        fit, decode = self, before
        if most > 0 and not decodes:
            decode = min(before, seconds / 2)
        elif most == 0 or seconds < before:
            # A step with a prefill that is shorter shows as well that decodes are.
            decodes = (*decodes[1 - _DECODES :], seconds)
            # The lower one of two: the first step is often a slow one.
            decode = sorted(decodes)[(len(decodes) - 1) // 2]
        if decodes is not self.decodes or decode != before:
            fit = CostFit(fit.resets, decodes, decode, *fit[3:])
        if before < math.inf and len(decodes) < _DECODES:
            # What the decodes took in the steps that were seen was known worse.
            later = before - decode
            weighted = [
                b + later * row[0]
                for b, row in zip(fit.weighted, fit.information, strict=True)
            ]
            fit = fit._solved(fit.information, weighted, decode, seconds)
        if most > 0:
            return fit._with_prefill(seconds, (1.0, most, mean, most * idle, attended))
        return fit

    def _with_prefill(self, seconds: float, load: tuple[float, ...]) -> "CostFit":
        fit, decode = self, self.decode
        expected = decode + _dot(fit.states[fit.attends], load)
        error = seconds - expected
        longer = max(seconds, expected)
        surprise = fit.surprise + (error / longer - fit.surprise) / _SURPRISES
        if abs(surprise) > _SURPRISED:
            fit, surprise = fit.forget(), 0.0
            fit = fit._replace(resets=fit.resets + 1)
        deviation = _NOISE * longer
        usual = _USUAL * deviation
        weight = usual / max(usual, abs(error)) / (deviation * deviation)
        keep = 1 - 1 / FORGETTING_STEPS
        information, weighted = [], []
        for h, row, b in zip(load, fit.information, fit.weighted, strict=True):
            each = weight * h
            information.append(
                [keep * a + each * other for a, other in zip(row, load, strict=True)]
            )
            weighted.append(keep * b + each * (seconds - decode))
        fit = fit._replace(surprise=surprise, steps=keep * fit.steps + 1)
        return fit._solved(information, weighted, decode, longer)

    def _solved(
        self,
        information: Sequence[Sequence[float]],
        weighted: Sequence[float],
        decode: float,
        longer: float,
    ) -> "CostFit":
        # A launch or a graph break costs at most about one decode step.
        highest = (decode, *[math.inf] * (len(_NOTHING) - 1))
        deviation = _DEVIATION * longer
        priors = [1 / (deviation * deviation)] * len(_NOTHING)
        for i in _TOGETHER:
            priors[i] += information[i][i] * _SHARED_PRIOR_STEPS / max(1.0, self.steps)
        rows = list(zip(information, weighted, highest, priors, strict=True))
        without = _descend(self.states[0], rows[:-1])
        attending = _descend(self.states[1], rows)
        gain = _explained(attending, rows) - _explained(without, rows)
        return self._replace(
            decode=decode,
            states=(without, attending),
            attends=attending[1] > decode and gain > _CERTAIN,
            information=information,
            weighted=weighted,
        )


_Row = tuple[Sequence[float], float, float, float]
"""Of the matrix A; with it that of b, the bound of the state, and its precision
before any step."""


def _descend(state: Sequence[float], rows: Sequence[_Row]) -> Sequence[float]:
    found = [*state]
    for _ in range(_SWEEPS):
        for i, (row, weighted, top, prior) in enumerate(rows):
            free = weighted - _dot(row, found) + row[i] * found[i]
            found[i] = min(max(0.0, free / (row[i] + prior)), top)
    return found


def _explained(state: Sequence[float], rows: Sequence[_Row]) -> float:
    """By how many variances a state lessens the squares of all errors."""
    sums = zip(state, rows, strict=True)
    return math.fsum([x * (2 * b - _dot(row, state)) for x, (row, b, *_) in sums])


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    a, b, c, d, e = one
    f, g, h, i, j = other
    return a * f + b * g + c * h + d * i + e * j
