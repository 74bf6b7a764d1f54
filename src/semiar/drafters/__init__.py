"""Everything that can guess a target's next tokens, behind one interface."""

from semiar.drafters.base import Context, Drafter, DrafterSettings, State, build_drafter, load_drafter, register
from semiar.drafters.hybrid import HybridDrafter
from semiar.drafters.lookup import LookupDrafter
from semiar.drafters.model import ModelDrafter
from semiar.drafters.none import NoDrafter
from semiar.drafters.recycling import RecyclingDrafter
from semiar.drafters.semi import SemiDrafter

__all__ = [
    "Context",
    "Drafter",
    "DrafterSettings",
    "HybridDrafter",
    "LookupDrafter",
    "ModelDrafter",
    "NoDrafter",
    "RecyclingDrafter",
    "SemiDrafter",
    "State",
    "build_drafter",
    "load_drafter",
    "register",
]
