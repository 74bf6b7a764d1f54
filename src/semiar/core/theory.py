"""How much faster speculation should be, from acceptance and measured costs; plain floats, no tensors.

beta_k is the acceptance at position k given that 1..k-1 were accepted.  All times are in one unit, whichever it is:
milliseconds, or passes of the target over one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from semiar.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured times of one speculative step, in one unit."""

    verify: Sequence[float]  # v(1), v(2), ...: one target pass over n tokens; v(1) is a plain step
    draft: float | Sequence[float] = 0.0  # one draft token, or the totals for 1, 2, ... draft tokens
    overhead: float = 0.0  # what a speculative step costs beyond its passes and a plain step does not

    def step(self, count: int) -> float:
        """Time of a step that drafts ``count`` tokens; ConfigError if that was not measured."""
        if count + 1 > len(self.verify):
            raise ConfigError(f"verify cost of {len(self.verify)} tokens", f"{count + 1}", "measure longer passes")
        if count == 0:
            return self.verify[0]
        return self.verify[count] + self.drafting(count) + self.overhead

    def drafting(self, count: int) -> float:
        """Time of drafting ``count`` tokens."""
        if isinstance(self.draft, (int, float)):
            return count * self.draft
        if count > len(self.draft):
            raise ConfigError(f"draft cost of {len(self.draft)} tokens", f"{count}", "measure longer drafts")
        return self.draft[count - 1]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What drafting ``count`` tokens per step should give."""

    count: int
    tokens_per_pass: float
    speedup: float


def acceptance_by_position(texts: Iterable[Sequence[tuple[int, int]]], count: int) -> list[float]:
    """beta_1 .. beta_count from the passes of some texts: how deep each was drafted, and how many tokens it accepted.

    Drafting nothing in mid-text counts as being refused: of a lookup that finds something in every second pass, at most
    half the passes gain.  A text's last pass says nothing about positions that were not drafted any more.
    """
    hits, reached = [0] * count, [0] * count
    for passes in texts:
        for number, (depth, accepted) in enumerate(passes, 1):
            for k in range(min(count, accepted + 1)):
                if depth > k or number < len(passes):
                    reached[k] += 1
                    hits[k] += accepted > k
    return [hit / max(1, of) for hit, of in zip(hits, reached, strict=True)]


def expected_tokens_per_pass(betas: Sequence[float]) -> float:
    """tau = 1 + sum over k of beta_1 ... beta_k, the tokens that one target pass yields, its own included."""
    if not all(0 <= beta <= 1 for beta in betas):
        raise ConfigError(f"acceptance {list(betas)}", "numbers in 0..1", "")
    return 1.0 + sum(accumulate(betas, mul))


def predict(betas: Sequence[float], costs: Costs, count: int) -> Prediction:
    """Tokens per pass and speed-up S = tau v(1) / (v(K + 1) + K c + o) with ``count`` = K drafted tokens per step.

    K = 0 is plain decoding.  ConfigError if ``betas`` or a cost does not reach K.
    """
    if not 0 <= count <= len(betas):
        raise ConfigError(f"K = {count}", f"0..{len(betas)}, the measured positions", "measure with a larger K")
    tau = expected_tokens_per_pass(betas[:count])
    return Prediction(count, tau, tau * costs.verify[0] / costs.step(count))


def passes_for(length: int, betas: Sequence[float], count: int) -> float:
    """Expected target passes until ``length`` tokens are out; the last pass may have drafted past the end.

    `expected_tokens_per_pass` is its limit for long answers.  For short ones the cut last pass costs a noticeable
    share: the passes of l tokens are 1 + sum over accepted a of P(a) times the passes of l - a - 1.
    """
    reach = [1.0, *accumulate(betas[:count], mul)]
    chances = [here - after for here, after in zip(reach, [*reach[1:], 0.0], strict=True)]
    passes = [0.0]
    for left in range(1, length + 1):
        passes.append(1 + sum(p * passes[left - a - 1] for a, p in enumerate(chances) if a + 1 < left))
    return passes[length]


def predict_answers(betas: Sequence[float], costs: Costs, count: int, lengths: Sequence[int]) -> Prediction:
    """As `predict`, for answers of these lengths instead of endless ones."""
    tokens, passes = sum(lengths), sum(passes_for(length, betas, count) for length in lengths)
    if not 0 <= count <= len(betas) or not passes:
        return predict(betas, costs, count)
    return Prediction(count, tokens / passes, tokens * costs.verify[0] / (passes * costs.step(count)))


def best_count(
    betas: Sequence[float],
    verify: Sequence[float],
    draft_cost: float | Sequence[float],
    overhead: float,
    max_count: int,
) -> int:
    """The K in 0..``max_count`` of the highest predicted speed-up, the smaller at ties; 0 = better not to draft.

    All K are tried: the marginal rule "add a position while it pays" stops too early where v(n) has a step.
    """
    costs = Costs(verify, draft_cost, overhead)
    return max(range(max_count + 1), key=lambda count: predict(betas, costs, count).speedup)
