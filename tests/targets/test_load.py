"""Loading a model: what is missing is named, and what comes back is ready to decode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kit.models import save_base, tiny
from kit.tokenizers import byte_tokenizer

from semiar.errors import ConfigError, SourceNotFound, TargetError
from semiar.settings import Load
from semiar.targets import Target, load_model, load_tokenizer
from semiar.targets.load import locate

CPU32 = Load("float32", "cpu")


def test_a_saved_model_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = save_base(tmp_path / "base")
    model = load_model(str(folder), CPU32)
    assert not model.training and model.dtype == torch.float32
    want = tiny("llama", torch.float32, vocab=len(byte_tokenizer()) + 4, context=512)
    ids = torch.arange(12)[None]
    assert torch.equal(Target(model)(ids).logits, want(ids).logits)
    assert load_tokenizer(str(folder)).get_vocab() == byte_tokenizer().get_vocab()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "a/b/c"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(SourceNotFound, match=name.split("/")[-1]):
        load_model(name, CPU32)
    with pytest.raises(FileNotFoundError):
        load_tokenizer(name)


def test_a_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceNotFound, match=r"no config\.json"):
        load_model(str(tmp_path), CPU32)


def test_a_gguf_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="GGUF"):
        load_model(str(tmp_path / "model.gguf"), CPU32)


def test_a_gguf_file_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "m.GGUF").write_bytes(b"x")
    assert locate(str(tmp_path / "m.GGUF")) == (str(tmp_path), {"gguf_file": "m.GGUF"})


def test_a_gguf_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not a model")
    with pytest.raises((TargetError, SourceNotFound)):
        load_model(str(tmp_path / "m.gguf"), CPU32)


def test_a_hub_id_without_network() -> None:
    with pytest.raises(SourceNotFound, match="could not be loaded"):
        load_model("semiar-tests/no-such-model", CPU32)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    save_base(tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").unlink()
    with pytest.raises(SourceNotFound, match="could not be loaded"):
        load_model(str(tmp_path / "base"), CPU32)


def test_a_config_of_no_known_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nothing_we_know"}')
    with pytest.raises(TargetError, match="transformers can load"):
        load_model(str(tmp_path), CPU32)


def test_a_recurrent_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}')
    with pytest.raises(TargetError, match="recurrent"):
        load_model(str(tmp_path), CPU32)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="float31"):
        Load("float31").torch_dtype()
    with pytest.raises(ConfigError, match="abacus"):
        Load(device="abacus").torch_device()


def test_settings_in_words() -> None:
    assert Load("float64").torch_dtype() == torch.float64
    assert Load().torch_dtype() == torch.bfloat16
    assert Load(device="cpu").torch_device() == torch.device("cpu")
