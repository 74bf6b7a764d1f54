"""The functions of the public surface: load a pair, generate, stream, train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from semiar.pair import Pair, Prompt
from semiar.settings import Load
from semiar.training.config import TrainConfig
from semiar.training.run import train as run_training


def load(
    name: str | Path, *, adapter: str | Path = "", drafter: str | Path = "", dtype: str = "auto", device: str = "auto",
    merge: bool = True, engine: str = "auto", drafting: str = "auto",
) -> Pair:  # fmt: skip
    """The pair that ``semiar train`` wrote in a folder, one on the hub, or a model with what is given beside it.

    The options are those of `Load`.
    """
    return Pair.load(name, Load(dtype, device, merge, engine, drafting), adapter=adapter, drafter=drafter)


def generate(
    pair: Pair | str | Path, prompts: Prompt | Sequence[Prompt], *, max_batch: int | None = None,
    max_new_tokens: int = 256,
    temperature: float | None = None, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
    num_speculative_tokens: int | str | None = None, tree: str = "none", nodes: int = 16, branch: int = 4,
    stop_below: float = 0.0, rule: str = "exact", seed: int | None = None,
) -> Any:  # fmt: skip
    """`Pair.generate` for a pair or its folder."""
    return (pair if isinstance(pair, Pair) else load(pair)).generate(
        prompts, max_batch=max_batch, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, num_speculative_tokens=num_speculative_tokens, tree=tree, nodes=nodes, branch=branch,
        stop_below=stop_below, rule=rule, seed=seed,
    )  # fmt: skip


def stream(
    pair: Pair | str | Path, prompt: Prompt, *, max_new_tokens: int = 256,
    temperature: float | None = None, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
    num_speculative_tokens: int | str | None = None, tree: str = "none", nodes: int = 16, branch: int = 4,
    stop_below: float = 0.0, rule: str = "exact", seed: int | None = None,
) -> Iterator[str]:  # fmt: skip
    """`Pair.stream` for a pair or its folder."""
    return (pair if isinstance(pair, Pair) else load(pair)).stream(
        prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        min_p=min_p, num_speculative_tokens=num_speculative_tokens, tree=tree, nodes=nodes, branch=branch,
        stop_below=stop_below, rule=rule, seed=seed,
    )  # fmt: skip


def train(config: TrainConfig, *, resume: bool = False) -> Pair | None:
    """Run a training and return its pair, loaded afresh for decoding; None when it was interrupted."""
    done = run_training(config, resume=resume)
    return None if done is None else Pair.load(config.out, Load(config.load.dtype, config.load.device))
