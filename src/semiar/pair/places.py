"""Where pairs are found: folders here, and repositories on the hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from semiar.errors import SourceNotFound
from semiar.hub import has_file, is_hub_id


def is_pair(name: str | Path) -> bool:
    """Whether this folder, or repository on the hub, holds a pair and not a model alone."""
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute() or not is_hub_id(str(name)):
        return (path / "run.yaml").is_file()
    return has_file(str(name), "run.yaml")


def local_folder(name: str | Path) -> Path:
    """The folder itself, or a download of it when `name` is a hub id.  Raises ``SourceNotFound``."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or not is_hub_id(str(name)):
        raise SourceNotFound(f"there is no folder '{name}'", "a folder that semiar train wrote, or a hub id")
    try:
        return Path(snapshot_download(str(name)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise SourceNotFound(
            f"there is no folder '{name}', nor could it be fetched from the hub ({type(error).__name__})",
            "a folder that semiar train wrote, or a hub id",
        ) from error
