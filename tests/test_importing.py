"""Random checkpoints in the original layouts: the imported drafter computes what the original formula says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kit.models import plain_greedy, prompts_of, save_base
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from semiar.cli import main
from semiar.core.draft import Plan
from semiar.decoding import Limits, decode
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.importing import ImportSettings, import_drafter
from semiar.pair import Pair
from semiar.settings import Load

H, K = 32, 3
FLOAT = Load("float32", "cpu", engine="eager")
Tensors = dict[str, Tensor]
Formula = Callable[[Tensors, Tensor, list[Tensor]], Tensor]  # of h_t and e(d_1)..e(d_k) the logits of step k


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("import") / "base")


def rows(base: Path) -> int:
    return Pair.load(str(base), FLOAT).target.vocab_size


def residual(x: Tensor, tensors: Tensors, name: str) -> Tensor:
    return x + F.silu(x @ tensors[f"{name}.linear.weight"].T + tensors[f"{name}.linear.bias"])


def medusa(vocab: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(K):
        for block in range(2):
            shapes |= {f"{head}.{block}.linear.weight": (H, H), f"{head}.{block}.linear.bias": (H,)}
        shapes[f"{head}.2.weight"] = (vocab, H)
    return shapes


def medusa_logits(tensors: Tensors, last: Tensor, drafted: list[Tensor]) -> Tensor:
    head = len(drafted) - 1
    x = residual(residual(last, tensors, f"{head}.0"), tensors, f"{head}.1")
    return x @ tensors[f"{head}.2.weight"].T


def hydra(vocab: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(K):
        for part in ("linear", "res_connection"):
            name = f"hydra_mlp.{head}.0.{part}"
            shapes |= {f"{name}.weight": (H, H * (head + 2)), f"{name}.bias": (H,)}
        shapes |= {f"hydra_mlp.{head}.1.linear.weight": (H, H), f"hydra_mlp.{head}.1.linear.bias": (H,)}
        shapes[f"hydra_lm_head.{head}.weight"] = (vocab, H)
    return shapes


def hydra_logits(tensors: Tensors, last: Tensor, drafted: list[Tensor]) -> Tensor:
    head = len(drafted) - 1
    x = torch.cat([last, *drafted])
    parts = [
        x @ tensors[f"hydra_mlp.{head}.0.{part}.weight"].T + tensors[f"hydra_mlp.{head}.0.{part}.bias"]
        for part in ("res_connection", "linear")
    ]
    x = residual(parts[0] + F.silu(parts[1]), tensors, f"hydra_mlp.{head}.1")
    return x @ tensors[f"hydra_lm_head.{head}.weight"].T


def recurrent(vocab: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"rnn_u.weight": (H, H), "rnn_u.bias": (H,), "rnn_w.weight": (H, H)}
    for block in range(2):
        shapes |= {f"lm_head.{block}.linear.weight": (2 * H, 2 * H), f"lm_head.{block}.linear.bias": (2 * H,)}
    return shapes | {"lm_head.2.weight": (vocab, 2 * H)}


def recurrent_logits(tensors: Tensors, last: Tensor, drafted: list[Tensor]) -> Tensor:
    state = F.silu(drafted[0] @ tensors["rnn_w.weight"].T)
    for embedded in drafted[1:]:
        before = state @ tensors["rnn_u.weight"].T + tensors["rnn_u.bias"]
        state = F.silu(embedded @ tensors["rnn_w.weight"].T + before)
    x = residual(residual(torch.cat([last, state]), tensors, "lm_head.0"), tensors, "lm_head.1")
    return x @ tensors["lm_head.2.weight"].T


CASES: dict[str, tuple[Callable[[int], dict[str, tuple[int, ...]]], Formula]] = {
    "medusa": (medusa, medusa_logits),
    "hydra": (hydra, hydra_logits),
    "recurrent": (recurrent, recurrent_logits),
}


def checkpoint(name: str, vocab: int) -> Tensors:
    rng = torch.Generator().manual_seed(4)
    return {key: torch.randn(shape, generator=rng) * 0.2 for key, shape in CASES[name][0](vocab).items()}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_drafter_computes_the_original_s_formula(
    name: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, out = checkpoint(name, rows(base)), tmp_path / "pair"
    file = tmp_path / f"{name}_lm_head.{'pt' if name == 'medusa' else 'safetensors'}"
    torch.save(tensors, file) if name == "medusa" else save_file(tensors, file)
    words = ["--architecture", name, "--model", str(base), "--out", str(out), "--num_speculative_tokens", str(K)]
    assert main(["import", str(file), *words]) == 0
    assert f"K = {K}" in capsys.readouterr().out
    pair = Pair.load(out, FLOAT)
    tokens = torch.tensor(prompts_of(200, [12]))
    hidden = pair.target(tokens).hidden
    anchors = torch.tensor([[2, 5, 7]])
    with torch.no_grad():
        states = list(pair.drafter.unroll(hidden, tokens, anchors))
        for step, state in enumerate(states):
            logits = pair.drafter.head(state, step)[0]
            for found, anchor in zip(logits, anchors[0].tolist(), strict=True):
                drafted = [pair.target.embedding[tokens[0, anchor + 1 + i]] for i in range(step + 1)]
                wanted = CASES[name][1](tensors, hidden[0, anchor, -1], drafted)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    prompts = prompts_of(200, [5, 9])
    texts: list[list[int]] = [[], []]
    for one in decode(pair.target, pair.drafter, prompts, Limits(8), plan=Plan(tree="best", nodes=6, branch=2)):
        for row, new in zip(one.rows, one.tokens, strict=True):
            texts[row] += new
    assert texts == plain_greedy(pair.target.lm, prompts, 8)


def test_what_cannot_be_imported(base: Path, tmp_path: Path) -> None:
    def run(folder: Path, architecture: str = "medusa", count: int = 0) -> None:
        settings = ImportSettings(str(folder), architecture, str(base), str(tmp_path / "out"), count)
        import_drafter(settings, Console(quiet=True))

    with pytest.raises(SourceNotFound, match="nowhere"):
        run(tmp_path / "nowhere.pt")
    with pytest.raises(SourceNotFound, match="0 files"):
        run(tmp_path)
    tensors = checkpoint("medusa", rows(base))
    torch.save(tensors, tmp_path / "medusa.pt")
    with pytest.raises(ConfigError, match="3, the heads"):
        run(tmp_path, count=2)
    with pytest.raises(PairError, match="hydra_mlp"):
        run(tmp_path, "hydra")
    with pytest.raises(ConfigError, match="one of eagle, hybrid, hydra"):
        run(tmp_path, "lookahead")
    torch.save({n: v for n, v in tensors.items() if n != "1.1.linear.bias"}, tmp_path / "medusa.pt")
    with pytest.raises(PairError, match=r"1\.1\.linear\.bias"):
        run(tmp_path)
    torch.save(checkpoint("medusa", 50), tmp_path / "medusa.pt")
    with pytest.raises(PairError, match=r"other shape own\.0\.weight"):
        run(tmp_path)
    (tmp_path / "medusa.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(PairError, match="cannot be read"):
        run(tmp_path)
    assert not (tmp_path / "out").exists()


def test_heads_that_are_the_target_s_own(base: Path, tmp_path: Path) -> None:
    """A checkpoint without output matrices uses the model's."""
    tensors = {n: v for n, v in checkpoint("medusa", rows(base)).items() if ".2." not in n}
    save_file(tensors, tmp_path / "medusa.safetensors")
    settings = ImportSettings(str(tmp_path / "medusa.safetensors"), "medusa", str(base), str(tmp_path / "out"))
    import_drafter(settings, Console(quiet=True))
    pair = Pair.load(tmp_path / "out", FLOAT)
    hidden = torch.randn(1, 4, 1, H)
    state = next(pair.drafter.unroll(hidden, torch.zeros(1, 4, dtype=torch.long), torch.tensor([[1]])))
    x = residual(residual(hidden[0, 1, 0], tensors, "0.0"), tensors, "0.1")
    torch.testing.assert_close(pair.drafter.head(state, 0)[0, 0], pair.target.head(x), rtol=1e-4, atol=1e-4)
