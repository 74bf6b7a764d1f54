"""The target: a Hugging Face causal LM seen as tokens in, logits and hidden states out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.errors import TargetError
from semiar.targets.attention import attention_masks
from semiar.targets.cache import Cache
from semiar.targets.engines.compiled import Compiled
from semiar.targets.engines.flat import Flat
from semiar.targets.engines.native import Native
from semiar.targets.engines.packed import given_up
from semiar.targets.layers import decoder_layers, finish_logits, refuse_unrollable, text_config, windows

LAST = -1  # name of the hidden state that the output head reads: the last layer after the final norm


@dataclass(frozen=True, slots=True)
class Output:
    """One pass over n new slots."""

    logits: Tensor | None  # (B, n, V), the model's own; of the engine native in float32
    hidden: Tensor  # (B, n, F, H), one column per layer asked for


class Target(nn.Module):
    """Runs the wrapped model over drafts and hands out what its output head reads.

    ``layers`` are indices of decoder layers whose output is wanted; ``-1`` is the state after the final norm.
    Raises ``TargetError`` for models whose memory cannot be rolled back.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.lm: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        refuse_unrollable(self.lm.config)
        self.config = text_config(self.lm)
        self.windows = windows(self.config)
        self.decoder: Any = self.lm.get_decoder()
        self.engine = "eager"  # set by `prepare`
        self.compiled: Compiled | None = None
        self.native: Native | None = None
        self.flat_limit = 0  # longest sample of a padding-free pass, set by `use_flat_passes`
        self._seen: dict[int, Tensor] = {}
        self._wanted: set[int] = set()
        self.decoder.register_forward_hook(self._see_last)
        for index, layer in enumerate(self.blocks):
            layer.register_forward_hook(self._see(index))

    def _apply(self, *arguments: Any, **options: Any) -> Target:
        if self.native is not None:  # its kernel reads the weights where they are
            raise given_up()
        return super()._apply(*arguments, **options)

    # -- what the model is -------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> nn.ModuleList:
        """The decoder layers."""
        return decoder_layers(self.decoder)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def embedding(self) -> Tensor:
        """Input embedding matrix, (rows, H)."""
        return self.lm.get_input_embeddings().weight

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the output head, padding rows included."""
        return int(self.lm.get_output_embeddings().weight.shape[0])

    @property
    def max_length(self) -> int:
        """Longest sequence the model was built for."""
        return int(getattr(self.config, "max_position_embeddings", 0) or 1 << 30)

    def fingerprint(self) -> str:
        """Identity of the weights: a hash over every parameter's sum and absolute sum."""
        seen = hashlib.sha256()
        for name, value in self.lm.named_parameters():
            wide = value.detach().double()
            seen.update(f"{name} {tuple(value.shape)} {float(wide.sum())!r} {float(wide.abs().sum())!r}".encode())
        return seen.hexdigest()

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of states that the output head reads, (..., H); equal to the model's own (see `check`)."""
        head = self.lm.get_output_embeddings()
        return finish_logits(self.config, head(hidden.to(head.weight.dtype)))

    def head_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight (n, H) and bias (n,) of the output head for these tokens, without gradient."""
        head = self.lm.get_output_embeddings()
        if hasattr(head, "lora_A"):
            raise TargetError("the adapter changes the output head with LoRA", "a plain output head", "merge it first")
        bias = getattr(head, "bias", None)
        return head.weight.detach()[ids], None if bias is None else bias.detach()[ids]

    def finish(self, logits: Tensor) -> Tensor:
        """Scaling or soft-capping that the architecture applies to the head's product."""
        return finish_logits(self.config, logits)

    # -- running it --------------------------------------------------------------------------------------------------

    def start(self, batch: int, capacity: int = 512) -> Cache:
        """An empty memory for `batch` rows with room for `capacity` positions (it grows when needed)."""
        return Cache(len(self.blocks), batch, capacity, self.device)

    def forward(
        self,
        tokens: Tensor,  # (B, n)
        cache: Cache | None = None,
        *,
        depths: Tensor | None = None,  # (B, n) distance from each row's committed end; None = a chain
        mask: Tensor | None = None,  # (B, n, n) bool, which new slots a new slot may see; None = a chain
        layers: Sequence[int] = (LAST,),
        logits: bool = True,
    ) -> Output:
        """One pass over `tokens`, placed after the committed positions of `cache` (or at position 0 without one)."""
        batch, count = tokens.shape
        if self.native is not None:
            where = self.start(batch, count) if cache is None else cache
            return Output(*self.native.run(tokens, where, depths, mask, layers, logits))
        if self.compiled is not None and cache is not None and mask is None and logits:
            out = self._compiled(self.compiled, tokens, cache, tuple(layers))
            if out is not None:
                return out
        if depths is None:
            depths = torch.arange(count, device=tokens.device).expand(batch, count)
        inputs: dict[str, Any] = {"input_ids": tokens.clamp(min=0), "position_ids": depths, "use_cache": False}
        if cache is not None:
            slots = cache.open(count)
            inputs["position_ids"] = cache.lengths[:, None] + depths
            inputs["attention_mask"] = self.attention(cache, slots, inputs["position_ids"], mask)
            inputs["past_key_values"], inputs["use_cache"] = cache.hf, True
        self.watch(layers)
        found = self.lm(**inputs) if logits else self.decoder(**inputs)
        return Output(found.logits if logits else None, self.read(layers))

    def expect(self, count: int) -> None:
        """Passes over so many tokens will come often: a compiled target makes a graph for them."""
        if self.compiled is not None:
            self.compiled.sizes = sorted({*self.compiled.sizes, count})

    def _compiled(self, compiled: Compiled, tokens: Tensor, cache: Cache, layers: tuple[int, ...]) -> Output | None:
        """A chain by the smallest graph that takes it, if there is one."""
        count, size = tokens.shape[1], compiled.size(tokens, cache)
        if size is None:
            return None
        slots = cache.open(size)
        masks = self.attention(cache, slots, slots, None, always=True)
        assert masks is not None
        found = compiled.run(
            F.pad(tokens.clamp(min=0), (0, size - count)).contiguous(),
            slots,
            masks if isinstance(masks, dict) else {"": masks},
            cache,
            layers,
        )
        return None if found is None else Output(found[0][:, :count], found[1][:, :count])

    def run(self, tokens: Tensor, lengths: Tensor | None = None) -> None:
        """A plain pass without the output head; `peek` and `read` then give the states that `watch` asked for.

        With the lengths (B,) of the samples, pads are left out and their states are zero, after `use_flat_passes`.
        """
        flat = None if lengths is None or not self.flat_limit else Flat.of(tokens, lengths, self.flat_limit)
        if flat is None:
            self.decoder(input_ids=tokens, use_cache=False)
            return
        self._seen.clear()
        self.decoder(**flat.inputs(tokens, self.windows), use_cache=False)
        self._seen = {layer: flat.spread(state) for layer, state in self._seen.items()}

    def states(self, tokens: Tensor, lengths: Tensor | None, layers: Sequence[int]) -> Tensor:
        """States (B, T, F, H) that `run` leaves for right-padded samples (B, T) of these lengths (B,)."""
        self.watch(layers)
        self.run(tokens, lengths)
        return self.read(layers)

    def read(self, layers: Sequence[int]) -> Tensor:
        """States (B, n, F, H) that the last pass of the model left; they are forgotten afterwards."""
        states = torch.stack([self._seen[layer] for layer in layers], 2)
        self._seen.clear()
        return states

    def peek(self, layer: int) -> Tensor:
        """One state (B, n, H) that the last pass left; it stays readable."""
        return self._seen[layer]

    def watch(self, layers: Sequence[int]) -> None:
        """Ask the next pass of the wrapped model, by whomever it is called, to leave these states for `read`."""
        self._wanted = set(layers) - {LAST}

    def prefill(
        self, tokens: Tensor, lengths: Tensor, cache: Cache, layers: Sequence[int], chunk: int = 1024
    ) -> Tensor:
        """Commit right-padded prompts (B, T) of these lengths (B,); return their states (B, T, F, H)."""
        states = []
        for start in range(0, tokens.shape[1], chunk):
            part = tokens[:, start : start + chunk]
            states.append(self(part, cache, layers=layers, logits=False).hidden)
            steps = torch.arange(part.shape[1], device=tokens.device).expand(part.shape)
            cache.keep(torch.where(start + steps < lengths[:, None], steps, -1), chain=True)
        return torch.cat(states, 1)

    def attention(
        self, cache: Cache, slots: Tensor, positions: Tensor, mask: Tensor | None = None, *, always: bool = False
    ) -> Tensor | dict[str, Tensor] | None:
        """What each new token sees: committed positions and its own ancestors, within the layer's window.

        None, unless ``always``, where the model's own rule says the same.
        """
        return attention_masks(cache, slots, positions, mask, self.windows, self.dtype, always)

    def _see(self, index: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if index in self._wanted:
                self._seen[index] = output[0] if isinstance(output, tuple) else output

        return hook

    def _see_last(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._seen[LAST] = output[0] if isinstance(output, tuple) else output.last_hidden_state
