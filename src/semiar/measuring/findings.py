"""What a bench run found, as records that the report and the terminal show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many drafted tokens the target kept; entry k - 1 of a list is position k, None = never reached."""

    target_passes: int
    tokens: int
    """Emitted by the speculative runs; nothing past a stop."""
    mean_acceptance_length: float
    """Accepted drafts + 1 per target pass: it includes the bonus token."""
    accepted_drafts_mean: float
    """The same without the + 1."""
    tokens_per_pass: float
    """Emitted tokens per target pass; below the length where a stop cut a pass."""
    acceptance_rate: float | None
    """Accepted / drafted."""
    per_position_acceptance_rate: list[float | None]
    """Unconditional, as vLLM."""
    per_position_counts: list[int]
    conditional_acceptance_rate: list[float | None]
    """Given that all earlier positions were accepted."""
    conditional_counts: list[int]
    accepted_histogram: list[int]
    """Passes that drafted all K tokens, by accepted ones; cut passes left out."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Wall clock; batch 1, prompt included unless said."""

    tokens_per_second_plain: float
    tokens_per_second: float
    speedup: float
    speedup_interval: tuple[float, float] | None
    """95 %, prompts and stretches of time resampled; None with a single prompt."""
    speedup_median_of_rounds: float
    speedup_without_prefill: float
    """Decoding alone: comparable with the prediction."""
    speedup_without_prefill_interval: tuple[float, float] | None
    by_prompt: list[dict[str, float]]
    """prompt, tokens, speedup."""


@dataclass(frozen=True, slots=True)
class Time:
    """Where the time goes, in milliseconds."""

    draft_ms: float
    """Median per drafting pass, as the next two."""
    verify_ms: float
    overhead_ms: float
    plain_step_ms: float
    """Median of a whole plain step."""
    per_token: dict[str, dict[str, float]]
    """Mode -> prefill, draft, verify, overhead per emitted token; sums to 1000 / tokens per second."""
    profile: dict[str, dict[str, float]]
    """Mode -> mean milliseconds per target pass of each part; empty unless the bench ran with --profile on."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speed-up that core.theory expects from measured costs, conditional acceptance and answer lengths; no prefill."""

    speedup: float | None
    """At the K that was used."""
    by_count: list[float]
    """At K = 0, 1, ..."""
    best_num_speculative_tokens: int | None


@dataclass(frozen=True, slots=True)
class Texts:
    """Whether plain and speculative runs wrote the same token ids; expected of greedy decoding only."""

    compared: int
    equal: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """Everything that a bench run found."""

    num_speculative_tokens: int
    prompts: int
    rounds: int
    acceptance: Acceptance
    speed: Speed
    time: Time
    prediction: Prediction
    disturbed: str
    """What shows that the machine was disturbed, so that no speed here is to be believed; empty when nothing does."""
    texts: Texts
    scores: dict[str, dict[str, float]]
    """Task metrics by mode: base (without the adapter), plain, speculative."""
