"""The one loop, and text from it."""

from semiar.decoding.loop import Limits, Step, decode
from semiar.decoding.text import Completion, complete, stream

__all__ = ["Completion", "Limits", "Step", "complete", "decode", "stream"]
