"""A Llama model as transformers saves it, written as one GGUF file for llama.cpp: in bfloat16, q8_0 or q4_0.

q4_0 keeps the embedding, which is the output head too, in q8_0, as llama.cpp's own converter keeps it finer than the
rest.

The tokenizer goes along as far as it takes to turn token ids into text; prompts are sent as ids, so the rule that
splits text before the merges is not named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from environments import PeerError
from gguf import (
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    get_tensor_name_map,
)
from gguf.quants import quantize
from safetensors.torch import load_file
from torch import Tensor

KINDS = {  # file type; of matrices; of the embedding
    "bf16": (LlamaFileType.MOSTLY_BF16, GGMLQuantizationType.BF16, GGMLQuantizationType.BF16),
    "q8_0": (LlamaFileType.MOSTLY_Q8_0, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q8_0),
    "q4_0": (LlamaFileType.MOSTLY_Q4_0, GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0),
}

BLOCK = 32  # inputs that share a scale; rows that do not divide into such blocks stay bfloat16


def check(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Refuse what would be written wrongly."""
    rope = config.get("rope_parameters") or {}
    found = [
        (config["model_type"], "llama", "model type"),
        (rope.get("rope_type", "default"), "default", "kind of rotary positions"),
        (tokenizer["model"]["type"], "BPE", "kind of tokenizer"),
    ]
    for value, expected, what in found:
        if value != expected:
            raise PeerError(f"{what} {value!r}", repr(expected), "leave llama.cpp out of --peers")


def rotated(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection in the order in which llama.cpp pairs them: (H * D, hidden) in and out."""
    halves = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def add_sizes(writer: GGUFWriter, config: dict[str, Any], kind: str) -> None:
    """What the model's shape is."""
    heads = config["num_attention_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(KINDS[kind][0])


def add_tokenizer(writer: GGUFWriter, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Byte-level pieces, merges and special tokens."""
    names = {index: (piece, TokenType.NORMAL) for piece, index in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        names[token["id"]] = (token["content"], kind)
    rows = [names.get(index, (f"[PAD{index}]", TokenType.UNUSED)) for index in range(config["vocab_size"])]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    ends = config.get("eos_token_id")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece for piece, _ in rows])
    writer.add_token_types([kind for _, kind in rows])
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    if ends is not None:
        writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)


def add_weights(writer: GGUFWriter, config: dict[str, Any], weights: dict[str, Tensor], kind: str) -> None:
    """Every tensor under llama.cpp's name: matrices of this kind, vectors in float32."""
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config.get("num_key_value_heads")}
    for name, weight in weights.items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise PeerError(f"tensor {name!r}", "the tensors of a Llama model", "leave llama.cpp out of --peers")
        count = heads.get(name.split(".")[-2])
        weight = rotated(weight, count) if count else weight
        if weight.dim() == 1:
            writer.add_tensor(found, weight.float().numpy())
        else:
            of_matrix, of_embedding = KINDS[kind][1:]
            made = of_embedding if found.startswith(("token_embd", "output")) else of_matrix
            made = made if weight.shape[1] % BLOCK == 0 else GGMLQuantizationType.BF16
            writer.add_tensor(found, quantize(weight.float().numpy(), made), raw_dtype=made)


def write(folder: Path, path: Path, kind: str = "bf16") -> None:
    """Write the model in this folder to this file, unless the file is there already and not older."""
    if path.is_file() and path.stat().st_mtime >= (folder / "config.json").stat().st_mtime:
        return
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    check(config, tokenizer)
    weights = {
        name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }
    half = path.with_suffix(".part")
    writer = GGUFWriter(half, "llama")
    add_sizes(writer, config, kind)
    add_tokenizer(writer, config, tokenizer)
    add_weights(writer, config, weights, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half.rename(path)
