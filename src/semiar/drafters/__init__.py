"""Everything that can guess a target's next tokens, behind one interface; the designs are in a room of their own."""

from semiar.drafters.base import Context, Drafter, State
from semiar.drafters.designs.none import NoDrafter as NoDrafter
from semiar.drafters.designs.semi import SemiSettings as DefaultSettings
from semiar.drafters.facts import Facts
from semiar.drafters.registry import (
    REGISTRY,
    build_drafter,
    design,
    drafter_settings,
    facts_of,
    names_of,
    register,
    shared,
)
from semiar.drafters.saving import load_drafter
from semiar.drafters.settings import DrafterSettings

__all__ = [
    "REGISTRY", "Context", "DefaultSettings", "Drafter", "DrafterSettings", "Facts", "NoDrafter", "State",
    "build_drafter", "design", "drafter_settings", "facts_of", "load_drafter", "names_of", "register", "shared",
]  # fmt: skip
