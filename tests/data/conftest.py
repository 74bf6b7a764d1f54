"""Where the real data lies, for the tests that read it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder() -> str:
    """Folder of the real excerpts: SEMIAR_DATA, else ``../shared/data`` beside the repository."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("SEMIAR_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set SEMIAR_DATA")
    return str(folder)
