"""h_q as any tiny Hugging Face causal LM that shares the target's token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from semiar.drafters.layers.small_lm import SmallLM
from semiar.errors import ConfigError
from semiar.settings import Load
from semiar.targets.layers import refuse_unrollable
from semiar.targets.load import load_model


class HFSmallLM(SmallLM):
    """The last hidden state of a small causal LM that reads d_1..d_k, projected to the target's hidden size."""

    def __init__(self, name: str, size: int, config: dict[str, Any] | None = None):
        super().__init__()
        if config is None:
            if not name:
                raise ConfigError("small_lm hf without small_lm_model", "the hub id or folder of a tiny causal LM")
            model: Any = load_model(name, Load(dtype="float32", device="cpu"))
        else:
            config = dict(config)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
        refuse_unrollable(model.config)
        self.decoder = model.get_decoder()
        self.project = nn.Linear(model.config.hidden_size, size, bias=False)

    def config(self) -> dict[str, Any]:
        """Enough to build the same architecture again; the weights are saved with the drafter."""
        return {"model_type": self.decoder.config.model_type, **self.decoder.config.to_diff_dict()}

    def begin(self, distant: Tensor) -> DynamicCache:
        return DynamicCache(config=self.decoder.config)

    def carry(self, state: DynamicCache, change: Callable[[Tensor], Tensor], batch: int) -> DynamicCache:
        """A cache with ``change`` applied to what it holds of ``batch`` rows, as (B, A, ...)."""
        other = DynamicCache(config=self.decoder.config)
        for index, layer in enumerate(state.layers):
            kept: Any = layer
            keys, values = (change(kind.unflatten(0, (batch, -1))).flatten(0, 1) for kind in (kept.keys, kept.values))
            other.update(keys, values, index)
        return other

    def step(self, tokens: Tensor, embedded: Tensor, state: DynamicCache) -> tuple[Tensor, DynamicCache]:
        rows = self.decoder.get_input_embeddings().weight.shape[0]
        if self.training and int(tokens.max()) >= rows:
            raise ConfigError(
                f"token {int(tokens.max())} for a small_lm_model of {rows} tokens", "the target's tokenizer"
            )
        tokens = tokens.clamp(max=rows - 1)  # while drafting, only a wrong guess can be a row that pads the target's
        out = self.decoder(input_ids=tokens.reshape(-1, 1), past_key_values=state, use_cache=True)
        hidden = out.last_hidden_state[:, -1]
        return self.project(hidden).view(*tokens.shape, -1), state
