"""Whole decoding passes as compiled graphs, one per (rows, tokens), for any length of text.

A pass over n tokens is run by the smallest graph that takes at least n; the tokens that fill it up stand behind the
real ones, where nobody sees them.  Graphs are compiled when they are first needed and kept for the target's lifetime.
The text's length and the cache's size are symbols of the graph, so nothing is compiled again when they grow.
"""

from __future__ import annotations

import itertools
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from semiar.errors import TargetError
from semiar.targets.cache import Cache
from semiar.targets.engines import onednn

NUMBERS = itertools.count()
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
        room = self.target.max_length - cache.width  # what fills a graph up has positions too
        return next((size for size in self.sizes if count <= size <= room), None)

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

        arguments = (tokens, positions, masks, cache.place.slots, cache)
        buffers = [states for buffer in cache.buffers for states in (buffer.keys, buffer.values)]
        growing = [*((mask, 3) for mask in masks.values()), *((states, 2) for states in buffers)]
        return compile_graph(step, f"pass_{tokens.shape[1]}", arguments, growing)


def compile_graph(
    function: Callable[..., Any], name: str, arguments: tuple[Any, ...], growing: Sequence[tuple[Tensor, int]]
) -> Any:
    """Compile `function` for arguments like these, of which only the dimensions in ``growing`` may change later.

    The weights of modules that it reads become constants of the graph, laid out for the CPU's kernels.  The graph
    checks nothing: it must only be called with tensors of the same types and other dimensions, in ``no_grad`` mode.
    """
    # torch.compile keeps graphs by code object, and these have no guards: every graph needs a code of its own
    code = function.__code__.replace(co_name=f"{name}_{next(NUMBERS)}")
    own = types.FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)
    graph: Any = torch.compile(own, fullgraph=True, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe})
    for tensor, dimension in growing:
        let_grow(tensor, dimension)
    on_cpu = growing[0][0].device.type == "cpu" if growing else True
    with (
        Console(stderr=True).status(f"compiling {name} (once; up to a minute)"),
        torch.no_grad(),
        frozen(on_cpu),
    ):
        graph(*arguments)
    return graph


def let_grow(tensor: Tensor, dimension: int) -> None:
    """Let the next graph take any length in this dimension, and keep it a symbol.

    Private: ``torch._dynamo.mark_dynamic``.  The public ``dynamic=True`` makes symbols of all dimensions.  Raises
    ``TargetError`` where PyTorch has it no more.
    """
    mark = getattr(torch._dynamo, "mark_dynamic", None)
    if mark is None:
        raise _gone("torch._dynamo.mark_dynamic")
    mark(tensor, dimension)


def frozen(on_cpu: bool) -> AbstractContextManager[Any]:
    """Compile with weights as constants, laid out for the CPU's kernels, and products kept from their sums.

    Private: three settings of ``torch._inductor.config``.  ``torch.compile(options=)`` takes them too, but too late:
    tracing asks for ``freezing`` before.  Raises ``TargetError`` where PyTorch has one of them no more.
    """
    config = torch._inductor.config
    settings = {"freezing": on_cpu, "cpp_wrapper": on_cpu, "joint_custom_post_pass": part_sums}
    for name in settings:
        if not hasattr(config, name):
            raise _gone(f"torch._inductor.config.{name}")
    return config.patch(settings)


def _gone(what: str) -> TargetError:
    return TargetError(
        f"PyTorch {torch.__version__} has no {what}", "a version that semiar was tested with", "--load.engine packed"
    )


def part_sums(graph: torch.fx.Graph) -> None:
    """Put a copy between a packed product and what is added to it; the compiler fuses it away.

    One of inductor's patterns (product + bias) takes every such product for one that it packed itself and stops.
    """
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.add.Tensor and getattr(node.args[0], "target", None) is onednn.PRODUCT:
            with graph.inserting_before(node):
                apart = graph.call_function(torch.ops.aten.clone.default, (node.args[0],))
            apart.meta.update(node.args[0].meta)
            node.replace_input_with(node.args[0], apart)
