"""EAGLE-1 from a random checkpoint in its original layout, against its formula over the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kit.models import plain_greedy, prompts_of, save_base
from kit.recording import record
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from semiar.cli import main
from semiar.core.draft import Plan
from semiar.errors import PairError
from semiar.importing import ImportSettings, import_drafter
from semiar.pair import Pair
from semiar.settings import Load

SIZE, HEADS, SHARED, INNER, COUNT = 32, 4, 2, 40, 3
WIDTH = SIZE // HEADS
THETA, EPSILON = 500.0, 2.0  # of the target; far from the usual ones, so that others would be seen
LAYER = "layers.0"
DOUBLE = Load("float64", "cpu", engine="eager")
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_base(tmp_path_factory.mktemp("import") / "base")
    config = json.loads((folder / "config.json").read_text())
    config |= {"rms_norm_eps": EPSILON, "rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def checkpoint(base: Path) -> Tensors:
    rng = torch.Generator().manual_seed(4)
    shapes = {
        "fc.weight": (SIZE, 2 * SIZE), "fc.bias": (SIZE,), f"{LAYER}.post_attention_layernorm.weight": (SIZE,),
        f"{LAYER}.self_attn.q_proj.weight": (SIZE, SIZE), f"{LAYER}.self_attn.o_proj.weight": (SIZE, SIZE),
        f"{LAYER}.self_attn.k_proj.weight": (SHARED * WIDTH, SIZE),
        f"{LAYER}.self_attn.v_proj.weight": (SHARED * WIDTH, SIZE),
        f"{LAYER}.mlp.gate_proj.weight": (INNER, SIZE), f"{LAYER}.mlp.up_proj.weight": (INNER, SIZE),
        f"{LAYER}.mlp.down_proj.weight": (SIZE, INNER),
    }  # fmt: skip
    tensors = {name: torch.randn(shape, generator=rng) * 0.3 for name, shape in shapes.items()}
    embedding = Pair.load(str(base), DOUBLE).target.embedding.detach()
    return tensors | {"embed_tokens.weight": embedding.bfloat16(), f"{LAYER}.rotary_emb.inv_freq": torch.ones(4)}


def turned(x: Tensor) -> Tensor:
    """Rotary positions (n, heads, d), as complex numbers: pair (j, j + d/2) turns by n / THETA**(2j/d)."""
    rates = THETA ** (-torch.arange(WIDTH // 2) * 2 / WIDTH)
    angles = torch.arange(len(x))[:, None] * rates.double()
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    found = torch.complex(x[..., : WIDTH // 2], x[..., WIDTH // 2 :]) * turn
    return torch.cat([found.real, found.imag], -1)


def last_feature(tensors: Tensors, embedded: Tensor, features: Tensor) -> Tensor:
    """What the layer makes of the last of n pairs (e(x_{i+1}), f_i), both (n, H)."""
    x = torch.cat([embedded, features], -1) @ tensors["fc.weight"].T + tensors["fc.bias"]
    query, key, value = (
        (x @ tensors[f"{LAYER}.self_attn.{name}_proj.weight"].T).view(len(x), -1, WIDTH) for name in "qkv"
    )
    query, key = turned(query), turned(key)
    mixed = []
    for head in range(HEADS):
        shared = head * SHARED // HEADS
        weights = (key[:, shared] @ query[-1, head] / WIDTH**0.5).softmax(0)
        mixed.append(weights @ value[:, shared])
    y = x[-1] + tensors[f"{LAYER}.self_attn.o_proj.weight"] @ torch.cat(mixed)
    normed = y / (y.square().mean() + EPSILON).sqrt() * tensors[f"{LAYER}.post_attention_layernorm.weight"]
    gate, up = (tensors[f"{LAYER}.mlp.{name}_proj.weight"] @ normed for name in ("gate", "up"))
    return y + tensors[f"{LAYER}.mlp.down_proj.weight"] @ (F.silu(gate) * up)


def drafted(tensors: Tensors, pair: Pair, text: list[int], given: list[int] | None = None) -> list[Tensor]:
    """Logits of each draft after ``text``; what is drafted between is ``given``, or the best token."""
    target = pair.target
    features = target(torch.tensor([text[:-1]])).hidden[0, :, -1]
    text, logits = list(text), []
    for step in range(COUNT):
        features = torch.cat([features, last_feature(tensors, target.embedding[text[1:]], features)[None]])
        logits.append(target.head(features[-1]))
        text.append(int(logits[-1].argmax()) if given is None else given[step])
    return logits


@pytest.fixture(scope="module")
def imported(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensors, Pair]:
    folder = tmp_path_factory.mktemp("eagle")
    tensors = checkpoint(base)
    save_file(tensors, folder / "model.safetensors")
    words = ["--architecture", "eagle", "--model", str(base), "--num_speculative_tokens", str(COUNT)]
    assert main(["import", str(folder), *words, "--out", str(folder / "pair")]) == 0
    return {name: tensor.double() for name, tensor in tensors.items()}, Pair.load(folder / "pair", DOUBLE)


@torch.no_grad()
def test_the_imported_eagle_computes_the_original_s_formula(imported: tuple[Tensors, Pair]) -> None:
    tensors, pair = imported
    (text,) = prompts_of(200, [14])
    tokens, anchors = torch.tensor([text]), torch.tensor([[0, 4, 9]])
    states = list(pair.drafter.eval().unroll(pair.target(tokens).hidden, tokens, anchors))
    for place, anchor in enumerate(anchors[0].tolist()):
        wanted = drafted(tensors, pair, text[: anchor + 2], text[anchor + 2 :])
        for step, state in enumerate(states):
            found = pair.drafter.head(state, step)[0, place]
            torch.testing.assert_close(found, wanted[step], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_it_drafts_by_that_formula_and_changes_nothing(imported: tuple[Tensors, Pair]) -> None:
    tensors, pair = imported
    prompts = prompts_of(200, [5, 9])
    rows, proposals = record(pair.target, pair.drafter, prompts, 8)
    assert rows == plain_greedy(pair.target.lm, prompts, 8)
    assert len(proposals) > 4
    for one in proposals:
        wanted = [int(logits.argmax()) for logits in drafted(tensors, pair, one.text)]
        assert one.tokens == wanted[: len(one.tokens)]
    assert record(pair.target, pair.drafter, prompts, 8, plan=Plan(tree="best", nodes=6, branch=2))[0] == rows


def test_what_is_not_eagle_1(base: Path, tmp_path: Path) -> None:
    def run(changes: Tensors, without: str = "") -> None:
        save_file({k: v for k, v in (whole | changes).items() if k != without}, tmp_path / "eagle.safetensors")
        settings = ImportSettings(str(tmp_path / "eagle.safetensors"), "eagle", str(base), str(tmp_path / "out"))
        import_drafter(settings, Console(quiet=True))

    whole = checkpoint(base)
    embedding = whole["embed_tokens.weight"]
    for other in (embedding + 1, embedding[:-1].contiguous()):
        with pytest.raises(PairError, match="other token embeddings"):
            run({"embed_tokens.weight": other})
    with pytest.raises(PairError, match="input_layernorm"):
        run({f"{LAYER}.input_layernorm.weight": torch.ones(SIZE)})
    with pytest.raises(PairError, match=r"no tensor 'layers\.0\.mlp\.up_proj\.weight'"):
        run({}, without=f"{LAYER}.mlp.up_proj.weight")
    with pytest.raises(PairError, match=r"other shape layer\.k_proj\.weight"):
        run({f"{LAYER}.self_attn.k_proj.weight": torch.ones(SIZE, SIZE)})
    assert not (tmp_path / "out").exists()
    run({}, without="fc.bias")
    pair = Pair.load(tmp_path / "out", DOUBLE)
    assert not pair.drafter.fc.bias.any() and pair.drafter.settings.num_speculative_tokens == 5  # type: ignore[attr-defined]
    config = (base / "config.json").read_text()
    scaled = json.loads(config) | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": THETA}}
    (base / "config.json").write_text(json.dumps(scaled))
    try:
        with pytest.raises(PairError, match="rotary positions linear"):
            run({})
    finally:
        (base / "config.json").write_text(config)
