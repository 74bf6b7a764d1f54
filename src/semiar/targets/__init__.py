"""A Hugging Face causal LM as tokens in, logits and hidden states out."""

from semiar.settings import Load
from semiar.targets.cache import Cache
from semiar.targets.load import load_model, load_tokenizer
from semiar.targets.target import Output, Target

__all__ = ["Cache", "Load", "Output", "Target", "load_model", "load_tokenizer"]
