"""Whole decoding passes as compiled graphs, one per (rows, tokens), for any length of text.

A pass over n tokens is run by the smallest graph that takes at least n; the tokens that fill it up stand behind the
real ones, where nobody sees them.  Graphs are compiled when they are first needed and kept for the target's lifetime.
The text's length and the cache's size are symbols of the graph, so nothing is compiled again when they grow.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from semiar.targets.cache import Cache

Masks = dict[str, Tensor]
Graph = Callable[[Tensor, Tensor, Masks, Tensor, Cache], tuple[Tensor, Tensor]]


class Compiled:
    """The compiled passes of one target.  ``sizes`` are the token counts that get a graph of their own."""

    def __init__(self, target: Any, sizes: Sequence[int], rows: Sequence[int] = (1,)):
        self.target, self.sizes, self.rows = target, sorted(set(sizes)), set(rows)
        self.graphs: dict[tuple[int, int, tuple[int, ...]], Graph] = {}
        self.broken = False

    def size(self, tokens: Tensor, cache: Cache) -> int | None:
        """Token count of the graph that would run this pass; None = it has to be run eagerly."""
        batch, count = tokens.shape
        if self.broken or batch not in self.rows or not cache.buffers[0].is_initialized:
            return None
        return next((size for size in self.sizes if size >= count), None)

    def run(
        self, tokens: Tensor, positions: Tensor, masks: Masks, cache: Cache, layers: tuple[int, ...]
    ) -> tuple[Tensor, Tensor] | None:
        """Logits (B, n, V) and states (B, n, F, H), or None when compiling failed: a warning says so once."""
        key = (*tokens.shape, layers)
        try:
            if key not in self.graphs:
                self.graphs[key] = self._compile(tokens, positions, masks, cache, layers)
            return self.graphs[key](tokens, positions, masks, cache.place.slots, cache)
        except Exception as error:
            self.broken = True
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"compiling the target failed ({reason}); decoding goes on without", stacklevel=2)
            return None

    def _compile(self, tokens: Tensor, positions: Tensor, masks: Masks, cache: Cache, layers: tuple[int, ...]) -> Graph:
        target = self.target

        def step(tokens: Tensor, positions: Tensor, masks: Masks, slots: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
            mask = next(iter(masks.values()))
            cache.place.slots, cache.place.span = slots, mask.shape[-1]
            target.watch(layers)
            out = target.lm(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=masks.get("", masks),
                past_key_values=cache.hf,
                use_cache=True,
            )
            return out.logits, target.read(layers)

        # torch.compile keeps graphs by code object, and these have no guards: every graph needs a code of its own
        code = step.__code__.replace(co_name=f"pass_{'_'.join(map(str, tokens.shape))}_{len(self.graphs)}")
        own = types.FunctionType(code, step.__globals__, code.co_name, None, step.__closure__)
        graph: Any = torch.compile(
            own, fullgraph=True, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        )
        for mask in masks.values():
            torch._dynamo.mark_dynamic(mask, 3)
        for buffer in cache.buffers:
            torch._dynamo.mark_dynamic(buffer.keys, 2)
            torch._dynamo.mark_dynamic(buffer.values, 2)
        about = f"compiling the pass over {tokens.shape[1]} tokens (once; about a minute)"
        with (
            Console(stderr=True).status(about),
            torch.no_grad(),
            torch._inductor.config.patch(freezing=tokens.device.type == "cpu"),
        ):
            graph(tokens, positions, masks, cache.place.slots, cache)
        return graph
