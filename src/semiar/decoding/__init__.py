"""The one loop, and text from it."""

from semiar.decoding.bridge import custom_generate
from semiar.decoding.loop import Limits, Step, decode
from semiar.decoding.text import Completion, complete, stream

__all__ = ["Completion", "Limits", "Step", "complete", "custom_generate", "decode", "stream"]
