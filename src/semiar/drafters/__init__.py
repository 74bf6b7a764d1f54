"""Everything that can guess a target's next tokens, behind one interface."""

from semiar.drafters.base import Context, Drafter, DrafterSettings, State, build_drafter, register
from semiar.drafters.eagle import EagleDrafter
from semiar.drafters.hybrid import HybridDrafter
from semiar.drafters.hydra import HydraDrafter
from semiar.drafters.lookup import LookupDrafter
from semiar.drafters.medusa import MedusaDrafter
from semiar.drafters.mlp import MLPDrafter
from semiar.drafters.model import ModelDrafter
from semiar.drafters.none import NoDrafter
from semiar.drafters.parallel import ParallelDrafter
from semiar.drafters.recurrent import RecurrentDrafter
from semiar.drafters.recycling import RecyclingDrafter
from semiar.drafters.saving import load_drafter
from semiar.drafters.semi import SemiDrafter
from semiar.drafters.skip import SkipDrafter

__all__ = [
    "Context",
    "Drafter",
    "DrafterSettings",
    "EagleDrafter",
    "HybridDrafter",
    "HydraDrafter",
    "LookupDrafter",
    "MLPDrafter",
    "MedusaDrafter",
    "ModelDrafter",
    "NoDrafter",
    "ParallelDrafter",
    "RecurrentDrafter",
    "RecyclingDrafter",
    "SemiDrafter",
    "SkipDrafter",
    "State",
    "build_drafter",
    "load_drafter",
    "register",
]
