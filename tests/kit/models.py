"""Tiny models and drafters in memory, no network: the test kit of the reported cases.

Random models are scaled so that the best token leads clearly (no near ties in float32) and outputs vary; sliding
windows are 8 wide, so short tests cross them.  Table models have a next-token law that is known exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from kit.tokenizers import byte_tokenizer
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, distribution, draw
from semiar.drafters import Context, Drafter, DrafterSettings, State, build_drafter
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


# -- drafters ----------------------------------------------------------------------------------------------------------


class TestDrafter(Drafter):
    """Base of the drafters below: K drafts, nothing to learn."""

    __test__ = False  # not a test class

    def __init__(self, count: int):
        super().__init__(DrafterSettings(architecture="none", num_speculative_tokens=count))


class ScriptDrafter(TestDrafter):
    """Proposes what ``script(tokens, count)`` says for each row's committed tokens; short lists are filled with -1."""

    def __init__(self, script: Callable[[list[int], int], Sequence[int]], count: int = 4):
        super().__init__(count)
        self.script = script

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        rows = [context.tokens[b, :n].tolist() for b, n in enumerate(context.lengths.tolist())]
        drafts = [list(self.script(row, plan.count))[: plan.count] for row in rows]
        width = max(len(draft) for draft in drafts)
        return Draft.chain(torch.tensor([d + [-1] * (width - len(d)) for d in drafts], dtype=torch.long))


class TableDrafter(TestDrafter):
    """Drafts from its own table of logits: a chain, or a full tree with ``width`` children of every node.

    ``how``: "sampled" draws from the row's softmax (siblings i.i.d.), "without" draws siblings without replacement,
    "chosen" takes the most likely ones.  ``vocab`` limits it to these ids, as a reduced draft vocabulary does.
    """

    def __init__(
        self,
        table: Sequence[Sequence[float]],
        count: int = 4,
        *,
        width: int = 1,
        how: str = "sampled",
        vocab: Sequence[int] | None = None,
    ):
        super().__init__(count)
        self.width, self.how = width, how
        self.register_buffer("d2t", None if vocab is None else torch.tensor(vocab))
        rows = torch.tensor(table, dtype=torch.float64)
        self.laws = (rows if self.vocab is None else rows[:, self.vocab]).softmax(-1)  # (V, V_draft)

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        how = "chosen" if sampling.greedy else self.how
        level = [(0, context.last()[:, 0])]  # (slot, token) of the nodes that get children
        tokens: list[Tensor] = []
        parents: list[int] = []
        laws: list[Tensor] = []
        for _ in range(plan.count):
            following = []
            for slot, token in level:
                law = self.laws[token]
                for column in self._siblings(law, how, rng):
                    tokens.append(column if self.vocab is None else self.vocab[column])
                    parents.append(slot)
                    laws.append(law)
                    following.append((len(tokens), tokens[-1]))
            level = following
        nodes = torch.stack(tokens, 1)
        probs = None if how == "chosen" else torch.stack(laws, 1)
        if self.width == 1:
            return Draft.chain(nodes, probs, self.vocab)
        return Draft(nodes, torch.tensor(parents).expand(len(nodes), -1), probs, self.vocab, how != "without")

    def _siblings(self, law: Tensor, how: str, rng: torch.Generator | None) -> list[Tensor]:
        if how == "chosen":
            return list(law.topk(self.width, -1).indices.unbind(-1))
        picks: list[Tensor] = []
        for _ in range(self.width):
            picks.append(draw(law, rng))
            if how == "without":
                law = law.scatter(1, picks[-1][:, None], 0.0)
        return picks


class ModelState(State):
    """The memory of a `ModelDrafter`: a cache of its own model."""

    def __init__(self, cache: Any):
        super().__init__()
        self.cache = cache

    def select(self, rows: Tensor) -> None:
        self.cache.select(rows)

    def join(self, other: State) -> None:
        self.cache.join(other.cache)  # type: ignore[attr-defined]


class ModelDrafter(TestDrafter):
    """A whole model as drafter, with its own cache: a chain, or a tree with ``width`` most likely children."""

    def __init__(self, model: nn.Module, count: int = 4, *, width: int = 1):
        super().__init__(count)
        self.own, self.width = Target(model), width

    def start(self, batch: int, capacity: int, device: torch.device) -> ModelState:
        return ModelState(self.own.start(batch, capacity))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        logits = self._catch_up(context, state.cache)  # type: ignore[attr-defined]
        if self.width > 1:
            return self._tree(logits, state.cache, plan.count)  # type: ignore[attr-defined]
        tokens: list[Tensor] = []
        laws: list[Tensor | None] = []
        for step in range(plan.count):
            law = distribution(logits, sampling)
            tokens.append(law.tokens if law.probs is None else draw(law.probs, rng))  # type: ignore[arg-type]
            laws.append(law.probs)
            if step + 1 < plan.count:
                logits = self._look(torch.cat(tokens, 1), state.cache)[:, -1:]  # type: ignore[attr-defined]
        return Draft.chain(torch.cat(tokens, 1), None if laws[0] is None else torch.cat(laws, 1))  # type: ignore[arg-type]

    def _catch_up(self, context: Context, cache: Any) -> Tensor:
        """Run what was committed since the last call; logits (B, 1, V) after each row's newest token."""
        need = context.lengths - cache.lengths
        steps = torch.arange(int(need.max()))
        places = (cache.lengths[:, None] + steps).clamp(max=context.tokens.shape[1] - 1)
        out = self.own(context.tokens.gather(1, places), cache)
        cache.keep(torch.where(steps < need[:, None], steps, -1))
        return out.logits[torch.arange(len(need)), need - 1][:, None]

    def _look(self, tokens: Tensor, cache: Any, **geometry: Tensor) -> Tensor:
        """Logits over drafted tokens; nothing of them stays in the cache."""
        logits = self.own(tokens, cache, **geometry).logits
        cache.keep(torch.full_like(tokens, -1), chain=True)
        return logits

    def _tree(self, logits: Tensor, cache: Any, count: int) -> Draft:
        """The ``width`` best children of every node, down to depth ``count``; chosen, not sampled."""
        batch = len(logits)
        tokens = logits[:, 0].topk(self.width).indices
        parents = [0] * self.width
        level = list(range(1, self.width + 1))
        for _ in range(count - 1):
            depths, mask = Draft(tokens, torch.tensor(parents).expand(batch, -1)).geometry()
            seen = self._look(tokens, cache, depths=depths[:, 1:] - 1, mask=mask[:, 1:, 1:])
            new = []
            for slot in level:
                tokens = torch.cat([tokens, seen[:, slot - 1].topk(self.width).indices], 1)
                parents += [slot] * self.width
                new += range(len(parents) - self.width + 1, len(parents) + 1)
            level = new
        return Draft(tokens, torch.tensor(parents).expand(batch, -1))


def noisy_drafter(model: nn.Module, count: int = 4, *, width: int = 1, noise: float = 0.04) -> ModelDrafter:
    """A noisy copy of the target as drafter: a good share of its drafts are right, but not all."""
    return ModelDrafter(noisy_copy(model, noise), count, width=width)


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


def draft_settings(**changes: Any) -> DrafterSettings:
    """Small `DrafterSettings` for hidden sizes around 32."""
    semi = {"bias_rank": 8, "num_heads": 2} if changes.get("architecture", "semi") == "semi" else {}
    return DrafterSettings(**{"num_speculative_tokens": 4, "lora_r": 4, **semi, **changes})


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
