"""semiar: fine-tune an LLM together with its draft model, then decode faster with exactly the same output."""

from semiar.api import Pair, generate, load, stream, train
from semiar.version import __version__

__all__ = ["Pair", "__version__", "generate", "load", "stream", "train"]
