"""How a loaded target is run: as transformers runs it, prepared for fast decoding, or without padding in training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from semiar.errors import ConfigError, TargetError
from semiar.settings import ENGINES
from semiar.targets.attention import use_grouped_attention, why_not_plain
from semiar.targets.check import check_target, compare, differs, quiet, sample_ids
from semiar.targets.engines import flat
from semiar.targets.engines.blocks import give_up
from semiar.targets.engines.compiled import Compiled
from semiar.targets.engines.kernels import processor
from semiar.targets.engines.native import Native, kernel, why_not
from semiar.targets.engines.packed import Packed, can_pack, join, pack
from semiar.targets.lora import is_adapted
from semiar.targets.target import LAST, Target


def choose_engine(wanted: str, target: Target) -> str:
    """The engine that `wanted` means on this machine.  Raises ``ConfigError`` when it is not possible."""
    if wanted not in ENGINES:
        raise ConfigError(f"engine '{wanted}'", f"one of {', '.join(ENGINES)}")
    able = can_pack(target.device, target.dtype) and not is_adapted(target.model)
    if wanted == "auto":
        return _fastest(target) if able and target.dtype == torch.bfloat16 else "eager"
    if wanted in ("compiled", "native") and is_adapted(target.model):
        raise ConfigError(f"engine {wanted} with an unmerged adapter", "a merged one", "leave --load.merge out")
    if wanted == "packed" and not able:
        raise ConfigError(
            f"engine packed for {target.dtype} on {target.device.type}"
            + (" with an unmerged adapter" if is_adapted(target.model) else ""),
            "bfloat16 or float32 on a CPU, without an adapter or with a merged one",
            "leave --load.engine out",
        )
    if wanted == "native" and why_not(target):
        raise ConfigError(f"engine native for {why_not(target)}", "another engine", "leave --load.engine out")
    return wanted


def _fastest(target: Target) -> str:
    """native where its kernel takes the model, can be compiled here and finds bfloat16 products, else packed."""
    if why_not(target) or "avx512_bf16" not in processor():
        return "packed"
    try:
        kernel()
    except TargetError as error:
        warnings.warn(f"{error}; going on with the engine packed", stacklevel=2)
        return "packed"
    return "native"


@torch.inference_mode()
def prepare(target: Target, engine: str, sizes: Sequence[int] = (1,)) -> None:
    """Make `target` fast in place; afterwards it can decode but neither learn, nor move, nor be saved.

    ``sizes`` are the token counts of the passes to compile, with the engine ``compiled``.
    Raises ``TargetError`` when the prepared model's logits are not the plain one's up to rounding.
    """
    if engine == "eager":
        return
    if engine == "native":
        kernel()  # before anything is changed
    ids = sample_ids(target)
    before = _logits(target, ids)
    packs = can_pack(target.device, target.dtype)  # a compiled graph reads packed weights as they are
    for block in target.blocks:
        join(block)
    native = Native(target) if engine == "native" else None
    for block in target.blocks:
        if native is not None:
            give_up(block)
        elif packs:
            pack(block)
    head = target.lm.get_output_embeddings()
    if packs and native is None and type(head) is nn.Linear:
        target.lm.set_output_embeddings(Packed(head.weight, head.bias, keep=True))
    use_grouped_attention(target.lm)
    target.engine, target.native = engine, native
    compare(target, _logits(target, ids), before, f"the model prepared for the engine '{engine}'")
    if engine == "compiled":
        target.compiled = Compiled(target, sizes)
    if native is not None:
        check_target(target)
        compare(target, _after_prefill(target, ids), before[:, 2:], "the engine native")


def use_flat_passes(target: Target, longest: int) -> str:
    """Let `target` run batches of samples up to this length without their padding; if not possible, says why.

    A short batch is run both ways first: an architecture whose samples would see each other keeps its padded passes.
    """
    span = min((window for window in target.windows.values() if window), default=longest)
    reason = why_not_plain(target.lm)
    if span < longest:
        reason = f"a sliding window of {span} tokens is shorter than the longest sample, {longest}"
    if reason:
        return reason
    target.lm.set_attn_implementation(flat.NAME)
    target.flat_limit = longest
    reason = _why_not_flat(target)
    if reason:
        leave_flat_passes(target)
    return reason


def leave_flat_passes(target: Target) -> None:
    """Back to transformers' own attention; the other way round from `use_flat_passes`."""
    if target.flat_limit:
        target.lm.set_attn_implementation("sdpa")
        target.flat_limit = 0


@torch.inference_mode()
def _why_not_flat(target: Target) -> str:
    """What goes wrong when samples of 2 to 4 tokens, or what fits the limit, are run without padding."""
    lengths = torch.tensor([2, 4, 3]).clamp(max=target.flat_limit)
    tokens = sample_ids(target)[:, :6].view(3, 2).repeat(1, 2)[:, : int(lengths.max())]
    real = (torch.arange(tokens.shape[1]) < lengths[:, None]).to(target.device)
    try:
        with quiet(target):
            found, wanted = (target.head(target.states(tokens, known, (LAST,))[real]) for known in (lengths, None))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"'{target.config.model_type}' cannot run samples in one row: {error}"
    gap = differs(target, found, wanted)
    return f"samples in one row give other logits, by {gap:.2g}" if gap else ""


def _after_prefill(target: Target, ids: Tensor) -> Tensor:
    """Logits behind the first two tokens, which are in the cache before the pass."""
    cache = target.start(1, 16)
    target.prefill(ids[:, :2], torch.tensor([2]), cache, (LAST,))
    logits = target(ids[:, 2:], cache).logits
    assert logits is not None
    return logits


def _logits(target: Target, ids: Tensor) -> Tensor:
    logits = target(ids).logits
    assert logits is not None
    return logits
