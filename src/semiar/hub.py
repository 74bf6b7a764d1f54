"""Whether something is on the hub, with one quick question: without a network its clients ask for a minute."""

from __future__ import annotations

import os

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError

from semiar.errors import SourceNotFound

SECONDS = 5.0  # that the hub may take to answer
PACKAGED = "smollm2"  # the model of the demo, which a package carries; see `targets.load`


def is_hub_id(name: str) -> bool:
    """Whether a name may be one of the hub: owner/name, and no path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def is_offline() -> bool:
    """Whether the user says that only what has been downloaded is to be looked at."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def is_cached(name: str, file: str) -> bool:
    """Whether this file of a model has been downloaded before."""
    return isinstance(try_to_load_from_cache(name, file), str)


def has_file(name: str, file: str) -> bool:
    """Whether a model on the hub has this file; no, where it cannot be asked."""
    if is_cached(name, file):
        return True
    if is_offline():
        return False
    try:
        found = HfApi().model_info(name, timeout=SECONDS).siblings or []
    except Exception:  # no network, no such repository: whoever loads it says so
        return False
    return any(one.rfilename == file for one in found)


def ask(name: str, kind: str = "model") -> None:
    """Raise ``SourceNotFound`` when a model or a data set is not on the hub, or the hub cannot be reached."""
    if is_offline() or (kind == "model" and is_cached(name, "config.json")):
        return
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=SECONDS)
    except HfHubHTTPError as error:
        raise SourceNotFound(
            f"the hub does not give the {kind} '{name}' ({type(error).__name__})", "an id that exists and may be read",
            "check the name, or log in with: hf auth login",
        ) from error  # fmt: skip
    except Exception as error:
        here = f"a local folder, a .gguf file, or {PACKAGED}" if kind == "model" else "a local file or folder"
        raise SourceNotFound(
            f"the {kind} '{name}' is not here, and the hub cannot be reached ({type(error).__name__})", here,
            "with HF_HUB_OFFLINE=1 only what was downloaded before is looked for",
        ) from error  # fmt: skip
