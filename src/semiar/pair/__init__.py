"""The one artefact: a target with its adapter, the drafter made for it, and the tokenizer."""

from semiar.pair.files import ADAPTER_FILES
from semiar.pair.pair import Pair
from semiar.pair.places import is_pair, local_folder
from semiar.pair.text import Prompt

__all__ = ["ADAPTER_FILES", "Pair", "Prompt", "is_pair", "local_folder"]
