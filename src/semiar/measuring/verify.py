"""Proof that speculative decoding of a pair changes nothing: `semiar verify`.

Greedy: in float32, the token ids of every prompt equal plain decoding's; where they differ, one float64 pass decides
whether the two candidates are a tie (logits closer than 1e-4).  Sampling: texts are drawn through the real loop, then
one plain pass gives the exact law at every position.  If the loop samples from those laws, the probability integral
transform of every token, ranked by its law, is uniform; a chi-square test per position says whether it is.
"""

from __future__ import annotations

import copy
import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from semiar.core.sampling import Sampling, distribution
from semiar.decoding import Limits, complete
from semiar.decoding.text import generator
from semiar.errors import ConfigError
from semiar.pair import Pair
from semiar.records import stamped
from semiar.settings import AUTO, DataSource, Decoding, Load, at_least
from semiar.targets import Target
from semiar.version import __version__

PROMPTS, LONGEST = 8, 64  # prompts, and greedy tokens of each, unless said otherwise
TIE = 1e-4  # two logits closer than this are a tie: float32 rounding may order them either way
BINS = 10
ALARM = 1e-4  # chance that a correct sampler fails the whole test


@dataclass(frozen=True)
class VerifySettings:
    """How much is checked."""

    data: DataSource = field(default_factory=DataSource)
    """The prompts; limit left out: 8."""
    samples: int = 400
    """Texts drawn for the test of the sampling law."""
    load: Load = field(default_factory=Load)
    """dtype left out: float32."""
    decoding: Decoding = field(default_factory=Decoding)
    """How texts are drawn; temperature left out: 1.0.  Greedy decoding is always checked."""

    def __post_init__(self) -> None:
        at_least(self, samples=1)
        object.__setattr__(self, "data", DataSource.of(self.data).filled(split="test", limit=PROMPTS))
        asked = self.decoding.filled(max_new_tokens=LONGEST, seed=0)
        asked = replace(asked, temperature=1.0) if asked.temperature is None else asked
        object.__setattr__(self, "decoding", asked)
        if self.load.dtype == AUTO:
            object.__setattr__(self, "load", replace(self.load, dtype="float32"))
        if not asked.longest:
            raise ConfigError("max_new_tokens 0", "1 or more")
        if not asked.temperature:
            raise ConfigError(f"temperature {asked.temperature}", "above 0; greedy decoding is always checked")
        if not asked.lossless:
            raise ConfigError(f"rule '{asked.rule}'", "exact or block: nothing else is lossless")
        if asked.num_speculative_tokens in (0, AUTO):
            found = f"num_speculative_tokens {asked.num_speculative_tokens}"
            raise ConfigError(found, "the K to be checked, 1 or more", "leave it out for the pair's own")


@dataclass(slots=True)
class Certificate:
    """What was checked, on what, and the outcome."""

    passed: bool = False
    model: str = ""
    drafter: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    dtype: str = ""
    date: str = ""
    greedy_tokens: int = 0
    greedy_prompts: int = 0
    greedy_accepted_drafts: int = 0
    ties: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    sampled_texts: int = 0
    sampled_tokens: int = 0
    sampling: list[dict[str, Any]] = field(default_factory=list)  # one test per position, speculative and plain


def verify(
    pair: Pair, prompts: Sequence[list[int]], ends: tuple[int, ...], settings: VerifySettings, console: Console
) -> Certificate:
    """Check a pair that was loaded in float32 (or float64)."""
    about = Certificate(
        model=pair.base, drafter=asdict(pair.drafter.settings), dtype=str(pair.target.dtype).removeprefix("torch."),
        versions={"semiar": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
                  "python": platform.python_version()},
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    check_greedy(pair, prompts, ends, settings, about)
    check_sampling(pair, prompts, settings, about)
    worst = min((test["p_value"] for test in about.sampling if test["mode"] == "speculative"), default=1.0)
    tests = max(1, sum(test["mode"] == "speculative" for test in about.sampling))
    about.passed = not about.differences and worst > ALARM / tests
    return about


def check_greedy(
    pair: Pair, prompts: Sequence[list[int]], ends: tuple[int, ...], settings: VerifySettings, about: Certificate
) -> None:
    """Token equality for the drafter's K, for K = 1, and for all prompts as one ragged batch."""
    limits, plan = Limits(settings.decoding.longest, ends), settings.decoding.plan
    most = pair.count(settings.decoding, [])
    assert isinstance(most, int)

    def run(batch: Sequence[list[int]], count: int) -> list[Any]:
        return complete(
            pair.target, pair.drafter, pair.tokenizer, batch, limits, num_speculative_tokens=count, plan=plan
        )

    plain = [run([prompt], 0)[0] for prompt in track(prompts, description="plain")]
    together = run(prompts, most)
    for index, prompt in enumerate(track(prompts, description="speculative")):
        found = {f"K={k}": run([prompt], k)[0] for k in sorted({1, most})} | {"batch": together[index]}
        for name, speculative in found.items():
            about.greedy_tokens += len(speculative.token_ids)
            about.greedy_accepted_drafts += sum(speculative.accepted)
            if speculative.token_ids != plain[index].token_ids:
                _difference(pair.target, prompt, plain[index].token_ids, speculative.token_ids, index, name, about)
    about.greedy_prompts = len(prompts)


def _difference(
    target: Target, prompt: list[int], plain: list[int], other: list[int], index: int, way: str, about: Certificate
) -> None:
    """Sort a difference into ties and real ones, by one uncached float64 pass up to it."""
    place = next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other)))
    note: dict[str, Any] = {"prompt": index, "way": way, "position": place}
    if place >= min(len(plain), len(other)):
        about.differences.append(note | {"why": "one output is longer than the other"})
        return
    exact = Target(copy.deepcopy(target.lm).double())
    with torch.inference_mode():
        out = exact(torch.tensor([prompt + plain[:place]], device=target.device))
    assert out.logits is not None
    pair_of = out.logits[0, -1, [plain[place], other[place]]].tolist()
    gap = abs(pair_of[0] - pair_of[1])
    note |= {"plain": plain[place], "speculative": other[place], "gap": gap}
    (about.ties if gap < TIE else about.differences).append(note)


def check_sampling(pair: Pair, prompts: Sequence[list[int]], settings: VerifySettings, about: Certificate) -> None:
    """Chi-square test of uniform ranks at every drafted position and the bonus, with plain decoding as control."""
    asked = settings.decoding
    most, sampling, seed = pair.count(asked, []), asked.sampling, asked.seed or 0
    assert isinstance(most, int)
    length = most + 3
    for mode, count in (("speculative", most), ("plain", 0)):
        ranks = []
        rng = generator(pair.target, seed + 7919)  # one stream for all ranks: shared numbers would not be uniform
        each = -(-settings.samples // len(prompts))
        for index, prompt in enumerate(track(prompts, description=f"sampling, {mode}")):
            done = complete(
                pair.target, pair.drafter, pair.tokenizer, [prompt] * each, Limits(length), sampling,
                seed=seed + index, num_speculative_tokens=count, plan=asked.plan,
                rule=asked.rule if count else "exact",
            )  # fmt: skip
            ids = torch.tensor([c.token_ids for c in done], device=pair.target.device)
            ranks.append(transform(pair.target, prompt, ids, sampling, rng))
        every = torch.cat(ranks)
        about.sampling += [
            {"mode": mode, "position": p + 1, "texts": len(every), **uniformity(every[:, p])} for p in range(length)
        ]
        if mode == "speculative":
            about.sampled_texts, about.sampled_tokens = len(every), every.numel()


@torch.inference_mode()
def transform(target: Target, prompt: list[int], ids: Tensor, sampling: Sampling, rng: torch.Generator) -> Tensor:
    """Randomised probability integral transform (n, L) of sampled ids (n, L), likeliest token first."""
    start = torch.tensor([prompt], device=ids.device).expand(len(ids), -1)
    out = target(torch.cat([start, ids], 1))
    assert out.logits is not None
    law = distribution(out.logits[:, len(prompt) - 1 : -1], sampling).probs
    assert law is not None
    own = law.gather(-1, ids[..., None])
    above = torch.where(law > own, law, 0).sum(-1)
    ties = torch.where(law == own, law, 0).sum(-1)
    shift = torch.rand(ids.shape, generator=rng, device=ids.device)
    return above + shift * ties


def uniformity(values: Tensor) -> dict[str, float]:
    """Chi-square statistic and p-value of values that should be uniform on [0, 1)."""
    counts = torch.histc(values.double().cpu(), BINS, 0, 1)
    expected = len(values) / BINS
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((BINS - 1) / 2, dtype=torch.float64)
    tail = torch.special.gammaincc(freedom, statistic.double() / 2)
    return {"chi_square": round(float(statistic), 3), "p_value": float(tail)}


def publish(found: Certificate, path: Path, console: Console) -> None:
    """Write the certificate and print what it says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stamped(asdict(found)), indent=2) + "\n", encoding="utf-8")
    table = Table(title="lossless" if found.passed else "[red]NOT lossless[/]", show_header=False)
    tests = [t for t in found.sampling if t["mode"] == "speculative"]
    worst = min((t["p_value"] for t in tests), default=1.0)
    table.add_row("greedy tokens equal to plain decoding", f"{found.greedy_tokens:,} on {found.greedy_prompts} prompts")
    table.add_row("drafts accepted among them", f"{found.greedy_accepted_drafts:,}")
    table.add_row("near ties (listed in the certificate)", str(len(found.ties)))
    table.add_row("differences", str(len(found.differences)))
    table.add_row("sampled texts / tokens tested", f"{found.sampled_texts:,} / {found.sampled_tokens:,}")
    table.add_row(f"smallest p-value of {len(tests)} positions", f"{worst:.2g}")
    table.add_row("precision", found.dtype)
    console.print(table)
    console.print(f"certificate: {path}", soft_wrap=True)
