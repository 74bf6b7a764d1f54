"""Where things are inside a Hugging Face causal LM, whatever its architecture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from semiar.errors import TargetError

RECURRENT = ("mamba", "linear_attention", "recurrent", "conv", "rwkv", "xlstm", "griffin", "hybrid", "deltanet")


def text_config(model: Any) -> Any:
    """The configuration of the language part, also in models that carry a vision tower."""
    return model.config.get_text_config(decoder=True)


def refuse_unrollable(config: Any) -> None:
    """Raise ``TargetError`` when the model keeps a state that cannot be rolled back after a rejected draft."""
    text = config.get_text_config(decoder=True)
    kinds = {
        str(kind) for kind in (getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    }
    marks = kinds | {str(text.model_type)}
    bad = sorted(mark for mark in marks if any(word in mark for word in RECURRENT))
    if bad:
        raise TargetError(
            f"the model type '{text.model_type}' has recurrent or linear-attention layers ({', '.join(bad)})",
            "a decoder whose whole memory is keys and values",
            "a rejected draft could not be taken back from such a state; choose an attention-only model",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise TargetError(f"'{text.model_type}' is an encoder-decoder model", "a decoder-only causal language model")


def decoder_layers(decoder: nn.Module) -> nn.ModuleList:
    """The stack of decoder layers: the longest ``ModuleList`` directly below the decoder."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    if not lists:
        raise TargetError(f"{type(decoder).__name__} has no list of layers", "a stack of decoder layers")
    return max(lists, key=len)


def finish_logits(config: Any, logits: Tensor) -> Tensor:
    """What some architectures do to the output head's product: scale it or cap it softly."""
    scaling = getattr(config, "logits_scaling", None)
    if scaling:
        logits = logits / scaling
    scale = getattr(config, "logit_scale", None)
    if scale:
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    return logits


def windows(config: Any) -> dict[str, int | None]:
    """Attention span per kind of layer; ``None`` = unlimited.  One entry named ``""`` = the same for all layers."""
    span = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise TargetError(f"layers of kind {sorted(unknown)}", "full_attention or sliding_attention layers")
    if "sliding_attention" in kinds:
        return {"full_attention": None, "sliding_attention": span}
    if kinds or getattr(config, "use_sliding_window", True) is False:
        return {"": None}
    return {"": span}
