"""Tiny models and drafters in memory, no network: the test kit of the reported cases.

Random models are scaled so that the best token leads clearly (no near ties in float32) and outputs vary; sliding
windows are 8 wide, so short tests cross them.  Table models have a next-token law that is known exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from kit.tokenizers import byte_tokenizer
from semiar.drafters import REGISTRY, Drafter, build_drafter, drafter_settings, shared
from semiar.pair import Pair
from semiar.targets import Target
from semiar.targets.lora import LoraSettings, attach

WINDOW = 8
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {"num_key_value_heads": 2}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW, "layer_types": MIXED}

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**SIZES, **GROUPED}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SIZES, **GROUPED, "sliding_window": WINDOW}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**SIZES, **GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**SIZES, **GROUPED}),
    "qwen2_window": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {**SIZES, **GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**SIZES, **GROUPED, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**SIZES, **GROUPED, **GEMMA, "final_logit_softcapping": 12.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**SIZES, **GROUPED, **GEMMA},
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**SIZES, "hidden_act": "tanh"}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {**SIZES, **GROUPED, "logits_scaling": 3.0}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {**SIZES, **GROUPED, "logit_scale": 0.25}),
}
NAMES = tuple(ARCHITECTURES)


def tiny(
    name: str = "llama",
    dtype: torch.dtype = torch.float64,
    vocab: int = 96,
    seed: int = 0,
    context: int = 160,
    **changes: Any,
) -> nn.Module:
    """A random three-layer model of this architecture, in evaluation mode; ``changes`` go to its configuration.

    The output head is scaled until the logits of random texts have a standard deviation of 4, which puts the median gap
    between best and second token above 0.5.
    """
    config_name, model_name, options = ARCHITECTURES[name]
    options = {"max_position_embeddings": context, "vocab_size": vocab, "tie_word_embeddings": False} | options | ENDS
    if name == "gpt2":
        options["n_positions"] = options.pop("max_position_embeddings")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, config_name)(**(options | changes))
        model: Any = getattr(transformers, model_name)(config).to(torch.float64).eval()
        _randomise(model)
        _spread(model)
    model.generation_config.eos_token_id = config.eos_token_id
    return model.to(dtype)


@torch.no_grad()
def _randomise(model: nn.Module) -> None:
    """Every weight matters: norms away from one, biases away from zero, matrices that change their input a lot."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for value in model.parameters():
        if value.ndim == 1:
            value.add_(torch.randn_like(value) * 0.3)
        elif id(value) in embeddings:
            value.copy_(torch.randn_like(value) * 2)
        else:
            value.copy_(torch.randn_like(value) * 1.5 / value.shape[-1] ** 0.5)


@torch.no_grad()
def _spread(model: Any, goal: float = 4.0) -> None:
    head = model.get_output_embeddings()
    texts = torch.randint(0, head.weight.shape[0], (4, 24))
    for _ in range(12):  # a soft cap makes it more than one step
        head.weight.mul_((goal / float(model(texts).logits.std())) ** 0.7)


@torch.no_grad()
def noisy_copy(model: nn.Module, noise: float = 0.04, seed: int = 1) -> nn.Module:
    """The same model with every matrix off by this share of its own size."""
    other = copy.deepcopy(model)
    rng = torch.Generator().manual_seed(seed)
    for value in other.parameters():
        error = torch.randn(value.shape, generator=rng, dtype=torch.float64).to(value.dtype)
        value.add_(error * value.std() * noise if value.ndim > 1 else 0)
    return other


def table_model(
    table: Sequence[Sequence[float]], context: int = 256, dtype: torch.dtype = torch.float64, layers: int = 1
) -> nn.Module:
    """A model whose logits after last token i are row i of ``table`` (V, V), whatever came before.

    Llama layers with silent attention and MLP, identity embedding, and head rows that undo the final norm.
    """
    rows = torch.tensor(table, dtype=torch.float64)
    size = len(rows)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=size, num_hidden_layers=layers, num_attention_heads=1, head_dim=2,
        intermediate_size=2, max_position_embeddings=context, tie_word_embeddings=False, rms_norm_eps=1e-12, **ENDS,
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config).to(torch.float64).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(rows.T / size**0.5)
    model.generation_config.eos_token_id = None
    return model.to(dtype)


def chain_table(size: int, step: int = 1, changes: dict[int, int] | None = None) -> list[list[float]]:
    """Logits of a chain i -> i + step (modulo the size), with ``changes`` of what follows single tokens."""
    following = {i: (i + step) % size for i in range(size)} | (changes or {})
    return [[10.0 if j == following[i] else 0.0 for j in range(size)] for i in range(size)]


# -- targets and prompts -----------------------------------------------------------------------------------------------


def target_of(name: str = "llama", dtype: torch.dtype = torch.float64, **options: Any) -> Target:
    """`tiny`, wrapped."""
    return Target(tiny(name, dtype, **options))


def prompts_of(vocab: int, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=rng).tolist() for n in lengths]


@torch.inference_mode()
def plain_greedy(model: Any, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy continuations by whole uncached passes of the bare model: it shares no code with the loop."""
    rows = [list(prompt) for prompt in prompts]
    for _ in range(count):
        width = max(len(row) for row in rows)
        logits = model(input_ids=torch.tensor([row + [0] * (width - len(row)) for row in rows])).logits
        for row, scores in zip(rows, logits, strict=True):
            row.append(int(scores[len(row) - 1].argmax()))
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]


# -- trained pairs -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def shake(module: nn.Module, seed: int = 0, size: float = 0.1) -> nn.Module:
    """Random changes of every parameter, as training would make them: nothing that starts at zero stays there."""
    rng = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        value.add_(torch.randn(value.shape, generator=rng).to(value.dtype) * size)
    return module


def settings_of(architecture: str = "semi", **changes: Any) -> Any:
    """A design's settings."""
    return drafter_settings({"architecture": architecture, **changes})


def draft_settings(architecture: str = "semi", **changes: Any) -> Any:
    """Small settings of a design, for hidden sizes around 32."""
    small = {"num_speculative_tokens": 4, "lora_r": 4, "bias_rank": 8, "num_heads": 2}
    if architecture != "semi":
        del small["num_heads"]  # the others' tests have heads of the usual number
    known = shared(small, architecture) if architecture in REGISTRY else {}
    if architecture == "hybrid":
        changes["inner"] = {"lora_r": 4, "bias_rank": 8, **changes.get("inner", {})}
    return settings_of(architecture, **{**known, **changes})


def semi_drafter(target: Target, vocab: Tensor | None = None, **changes: Any) -> Drafter:
    """A drafter (semi-autoregressive unless said) with random weights, of the target's precision, ready to draft."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        drafter = shake(build_drafter(draft_settings(**changes), target, vocab))
    return drafter.to(target.dtype).eval().bind(target)  # type: ignore[operator,return-value]


def save_base(folder: Path, *, tokenizer: Any = None, dtype: torch.dtype = torch.float32) -> Path:
    """A tiny Llama with a row for every token of the byte tokenizer, saved with it as a plain model folder."""
    tokenizer = tokenizer or byte_tokenizer()
    model: Any = tiny("llama", dtype, vocab=len(tokenizer) + 4, context=512)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pair_of(base: Path, *, small_lm: str = "lstm", **changes: Any) -> Pair:
    """A tiny complete pair on a saved base model: LoRA adapter and drafter with random weights, nothing trained."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(3)
    adapted = attach(model, LoraSettings(r=4, lora_dropout=0.5))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)
    target = Target(adapted.eval())
    drafter = semi_drafter(target, torch.arange(10, 250, 2), small_lm=small_lm, **changes)
    return Pair(target, drafter, byte_tokenizer(), str(base), {"model": str(base), "mode": "joint"}, {"held_out": {}})


def pair_folder(folder: Path, **changes: Any) -> Path:
    """Build a tiny pair and save it in ``folder``/pair, its base model in ``folder``/base."""
    base = save_base(folder / "base")
    pair_of(base, **changes).save(folder / "pair")
    return folder / "pair"
