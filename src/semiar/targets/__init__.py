"""A Hugging Face causal LM as tokens in, logits and hidden states out."""

from semiar.targets.cache import Cache
from semiar.targets.load import LoadSettings, load_model, load_tokenizer
from semiar.targets.target import Output, Target

__all__ = ["Cache", "LoadSettings", "Output", "Target", "load_model", "load_tokenizer"]
