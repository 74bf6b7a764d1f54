"""What a comparison is made of serves advice, too."""

from studies.conftest import base, data

__all__ = ["base", "data"]
