"""A small model as drafter: its memory, its law, and which models are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import noisy_copy, plain_greedy, prompts_of, save_base, settings_of, target_of, tiny
from kit.recording import record
from kit.tokenizers import byte_tokenizer

from semiar.core.draft import Plan
from semiar.core.sampling import Sampling, distribution
from semiar.decoding import Limits, decode
from semiar.drafters import Drafter, build_drafter, load_drafter
from semiar.drafters.saving import save_drafter
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.targets import Target

PROMPTS = prompts_of(96, [1, 6, 14])


def saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


def drafter_of(model: str, target: Target, count: int = 4, vocab: torch.Tensor | None = None) -> Drafter:
    settings = settings_of("model", num_speculative_tokens=count, model=model)
    return build_drafter(settings, target, vocab).eval()


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of the target of these tests."""
    return saved(tiny("llama", torch.float32), tmp_path_factory.mktemp("twin"))


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_twin_of_the_target_is_accepted_whole(twin: str, heat: float) -> None:
    target, rng = target_of("llama", torch.float32), torch.Generator().manual_seed(0)
    steps = list(decode(target, drafter_of(twin, target), PROMPTS, Limits(21), Sampling(heat), rng=rng))
    assert len(steps) <= 6 and all(a == step.drafted for step in steps for a in step.accepted)


def test_its_law_is_its_model_s_in_every_round(twin: str, tmp_path: Path) -> None:
    target = target_of("llama")
    model: Any = noisy_copy(tiny("llama", torch.float32), 0.1)
    drafter = drafter_of(saved(model, tmp_path), target)
    proposals = record(target, drafter, PROMPTS, 14, Sampling(1.0))[1]
    assert len(proposals) > 8
    for proposal in proposals:
        tokens = torch.tensor([proposal.text + proposal.tokens])
        logits = model.double()(tokens).logits[:, len(proposal.text) - 1 : -1]
        wanted = distribution(logits, Sampling(1.0)).dense[0]
        torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("mine", "theirs"), [(90, 96), (100, 96)])
def test_heads_of_different_sizes(mine: int, theirs: int, tmp_path: Path) -> None:
    """What pads the larger head is not drafted, and what the smaller one lacks is read as something else."""
    target = target_of("llama", vocab=theirs)
    drafter = drafter_of(saved(tiny("llama", torch.float32, vocab=mine), tmp_path), target)
    prompts = [*PROMPTS[1:], [95, 94, 95]]
    for heat in (0.0, 1.0):
        rows, proposals = record(target, drafter, prompts, 12, Sampling(heat))
        assert max(token for p in proposals for token in p.tokens) < min(mine, theirs)
        assert heat or rows == plain_greedy(target.lm, prompts, 12)
    assert drafter.vocab is None if mine > theirs else len(drafter.vocab) == mine  # type: ignore[arg-type]


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_chain_stops_after_a_token_it_is_unsure_of(twin: str, heat: float) -> None:
    """A twin's own probability is the target's: an unsure token is the last one, and every other one is sure."""
    target, seen = target_of("llama", torch.float32), set()
    target.requires_grad_(False)
    drafter = drafter_of(twin, target)
    propose = drafter.propose
    drafter.propose = lambda context, state, plan, *rest: propose(  # type: ignore[method-assign]
        context, state, replace(plan, stop_below=0.3), *rest
    )
    for proposal in record(target, drafter, PROMPTS, 12, Sampling(heat))[1]:
        drafted = [token for token in proposal.tokens if token >= 0]
        assert drafted == proposal.tokens[: len(drafted)]
        logits = target(torch.tensor([proposal.text + drafted])).logits[0, len(proposal.text) - 1 : -1]
        sure = [float(law[token]) >= 0.3 for law, token in zip(logits.softmax(-1), drafted, strict=True)]
        assert all(sure[:-1])
        seen.add(len(drafted))
        assert not sure[-1] or len(drafted) == len(proposal.tokens)
    assert len(seen) > 1


@pytest.mark.parametrize("tree", ["best", "beam", "sampled"])
def test_trees_follow_its_law(tree: str, tmp_path: Path) -> None:
    target = target_of("llama")
    model: Any = noisy_copy(tiny("llama", torch.float32), 0.1)
    drafter = drafter_of(saved(model, tmp_path), target, vocab=torch.arange(0, 96, 2))
    plan = Plan(tree=tree, nodes=7, branch=3)
    rows, _ = record(target, drafter, PROMPTS, 14, plan=plan)
    assert rows == plain_greedy(target.lm, PROMPTS, 14)
    proposals = record(target, drafter, PROMPTS, 14, Sampling(1.0), plan=plan)[1]
    assert sum(len(proposal.tokens) == 7 and len(proposal.paths()) > 1 for proposal in proposals) > 4  # but at the ends
    for proposal in proposals:
        for way in proposal.paths():
            drafted = [proposal.tokens[slot - 1] for slot in way]
            logits = model.double()(torch.tensor([proposal.text + drafted])).logits[0, len(proposal.text) - 1 : -1, ::2]
            if proposal.probs is not None:
                wanted = distribution(logits, Sampling(1.0)).dense
                torch.testing.assert_close(proposal.probs[[slot - 1 for slot in way]], wanted, rtol=0, atol=1e-6)
            elif tree == "best":  # the first child of every node is its best
                first = proposal.tokens[proposal.parents.index(0)]
                assert logits[0].topk(3).indices.mul(2).tolist().count(first)
    assert all((p.probs is not None) is (tree == "sampled") for p in proposals)


def test_a_text_longer_than_its_context_goes_on_without_drafts(tmp_path: Path) -> None:
    target = target_of("llama", torch.float32)
    drafter = drafter_of(saved(tiny("llama", torch.float32, context=16), tmp_path), target)
    rows, proposals = record(target, drafter, PROMPTS[:2], 20)
    assert rows == plain_greedy(target.lm, PROMPTS[:2], 20)
    assert proposals and max(len(p.text) for p in proposals) <= 12


def test_the_folder_holds_a_reference(twin: str, tmp_path: Path) -> None:
    target = target_of("llama", torch.float32)
    save_drafter(drafter_of(twin, target), tmp_path / "drafter", {})
    assert (tmp_path / "drafter/model.safetensors").stat().st_size < 200
    load_drafter(tmp_path / "drafter", target)
    saved(noisy_copy(tiny("llama", torch.float32)), tmp_path / "other")
    config = json.loads((tmp_path / "drafter/config.json").read_text())
    config["settings"]["model"] = str(tmp_path / "other")
    (tmp_path / "drafter/config.json").write_text(json.dumps(config))
    with pytest.raises(PairError, match="is not the model that this drafter was made of"):
        load_drafter(tmp_path / "drafter", target)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    target = target_of("llama", torch.float32, vocab=264)
    base = save_base(tmp_path / "base")
    drafter = drafter_of(str(base), target)
    drafter.check_tokenizer(byte_tokenizer())
    with pytest.raises(PairError, match="is token 256 of the target"):
        drafter.check_tokenizer(byte_tokenizer(merges=["th"]))
    with pytest.raises(PairError, match="263 tokens"):
        tokenizer = byte_tokenizer()
        tokenizer.add_tokens(["one", "two", "three"])
        tokenizer.save_pretrained(base)
        drafter_of(saved(tiny("llama", torch.float32, vocab=261), tmp_path / "base"), target).check_tokenizer(tokenizer)


def test_models_that_cannot_be(tmp_path: Path, twin: str) -> None:
    target = target_of("llama", torch.float32)
    with pytest.raises(ConfigError, match="without a model"):
        drafter_of("", target)
    with pytest.raises(SourceNotFound, match="nowhere"):
        drafter_of("./nowhere", target)
    with pytest.raises(PairError, match="97"):
        drafter_of(twin, target, vocab=torch.tensor([3, 97]))


def test_the_packed_engine(twin: str) -> None:
    target = target_of("llama", torch.float32)
    for vocab in (None, torch.arange(0, 96, 2)):
        plain, packed = drafter_of(twin, target, vocab=vocab), drafter_of(twin, target, vocab=vocab)
        packed.prepare("packed")
        drafts = [[p.tokens for p in record(target, one, PROMPTS, 12)[1]] for one in (plain, packed)]
        assert drafts[0] == drafts[1]
