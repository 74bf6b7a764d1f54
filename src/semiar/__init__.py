"""Fine-tune an LLM together with its draft model, then decode several times faster with exactly the same output."""

from semiar.api import generate, load, stream, train
from semiar.drafters import DrafterSettings, drafter_settings
from semiar.errors import (
    ConfigError,
    DataError,
    MissingDependency,
    PairError,
    SemiarError,
    SourceNotFound,
    TargetError,
    TrainingError,
)
from semiar.pair import Pair
from semiar.settings import DataSource, Decoding, Load, Training
from semiar.targets.lora import LoraSettings
from semiar.training.config import LossSettings, TrainConfig
from semiar.version import __version__

__all__ = [
    "ConfigError", "DataError", "DataSource", "Decoding", "DrafterSettings", "Load", "LoraSettings", "LossSettings",
    "MissingDependency", "Pair", "PairError", "SemiarError", "SourceNotFound", "TargetError", "TrainConfig", "Training",
    "TrainingError", "__version__", "drafter_settings", "generate", "load", "stream", "train",
]  # fmt: skip
