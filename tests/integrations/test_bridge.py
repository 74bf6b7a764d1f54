"""``model.generate(custom_generate=...)``: the plain call's ids, and a refusal for what would change them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.drafters import noisy_drafter
from kit.models import semi_drafter, table_model, tiny
from kit.tokenizers import byte_tokenizer
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from semiar.errors import ConfigError, PairError
from semiar.integrations.bridge import custom_generate
from semiar.pair import Pair
from semiar.targets import Target
from semiar.targets.lora import LoraSettings, attach

PAD = 0


def pair_with(model: Any, drafter: Any = None) -> Pair:
    target = Target(model)
    return Pair(target, drafter or noisy_drafter(model), byte_tokenizer(), "tiny")


@pytest.fixture
def pair() -> Pair:
    return pair_with(tiny("llama"))


def texts(lengths: list[int], seed: int = 1) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 96, (n,), generator=rng).tolist() for n in lengths]


def padded(rows: list[list[int]], side: str = "left") -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    fill = [[PAD] * (width - len(row)) for row in rows]
    ids = [f + r if side == "left" else r + f for r, f in zip(rows, fill, strict=True)]
    mask = [
        [0] * len(f) + [1] * len(r) if side == "left" else [1] * len(r) + [0] * len(f)
        for r, f in zip(rows, fill, strict=True)
    ]
    return torch.tensor(ids), torch.tensor(mask)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_greedy_ids_equal_the_plain_call(name: str) -> None:
    pair = pair_with(tiny(name))
    call = custom_generate(pair)
    for row in texts([1, 5, 20]):
        ids = torch.tensor([row])
        options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": PAD}
        plain = pair.target.lm.generate(ids, **options)
        assert torch.equal(pair.target.lm.generate(ids, custom_generate=call, **options), plain)


def test_a_left_padded_batch_equals_the_plain_call_and_rows_end_at_their_own_end_token(pair: Pair) -> None:
    ids, mask = padded(texts([3, 17, 9, 17]))
    model = pair.target.lm
    plain = model.generate(ids, attention_mask=mask, max_new_tokens=30, do_sample=False, pad_token_id=PAD)
    ends = plain[:3, ids.shape[1] + 7].tolist()  # tokens that some rows will write, at different places
    options = {"attention_mask": mask, "do_sample": False, "pad_token_id": PAD, "eos_token_id": ends}
    for limit in ({"max_new_tokens": 30}, {"max_length": 25}):
        want = model.generate(ids, **options, **limit)
        found = model.generate(ids, custom_generate=custom_generate(pair), **options, **limit)
        assert torch.equal(found, want)
        assert (found[:, -1] == PAD).any()  # a row that ended early is padded


def test_right_padding_is_stripped_and_the_answer_follows_the_padded_prompt(pair: Pair) -> None:
    rows = texts([4, 11])
    ids, mask = padded(rows, "right")
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": PAD}
    found = pair.target.lm.generate(ids, attention_mask=mask, custom_generate=custom_generate(pair), **options)
    assert torch.equal(found[:, : ids.shape[1]], ids)
    for row, answer in zip(rows, found[:, ids.shape[1] :], strict=True):
        alone = pair.target.lm.generate(torch.tensor([row]), **options)
        assert torch.equal(answer, alone[0, len(row) :])


def test_an_unmerged_adapter_and_a_trained_drafter(pair: Pair) -> None:
    model = attach(tiny("llama"), LoraSettings(r=2))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)
    target = Target(model.eval())
    adapted = Pair(target, semi_drafter(target), byte_tokenizer(), "tiny")
    ids = torch.tensor(texts([7]))
    plain = model.generate(input_ids=ids, max_new_tokens=16, do_sample=False)
    call = custom_generate(adapted, num_speculative_tokens=3)
    assert torch.equal(model.generate(input_ids=ids, max_new_tokens=16, do_sample=False, custom_generate=call), plain)


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.8}, {"temperature": 1.5, "min_p": 0.2}, {"top_k": 0}],
    ids=str,
)
def test_sampling_draws_from_the_law_of_the_plain_call(options: dict[str, float]) -> None:
    rows = [[2.0, 1.0, 0.2, -1.0], [0.0, 0.1, 2.5, 0.4], [1.0, 1.2, 0.9, 1.1], [3.0, 0.0, 0.5, 0.2]]
    model = table_model(rows)
    pair = pair_with(model, noisy_drafter(model, noise=0.5))
    ids = torch.tensor([[1, 2]]).expand(3000, -1)
    common = {"do_sample": True, "max_new_tokens": 3, **options}
    torch.manual_seed(5)
    plain = model.generate(ids, **common)
    found = model.generate(ids, custom_generate=custom_generate(pair), **common)
    for first in (2, 3):
        counts = [torch.bincount(out[:, first] * 4 + out[:, first + 1], minlength=16) for out in (plain, found)]
        both = counts[0] + counts[1]
        seen = both > 20
        chi = ((counts[0] - counts[1]) ** 2 / both.clamp(min=1))[seen].sum()
        assert float(chi) < 45, (counts, options)  # at most 16 degrees of freedom: p < 2e-4


def test_the_global_seed_decides_and_a_streamer_gets_every_token(pair: Pair) -> None:
    ids, call, outputs = torch.tensor(texts([5])), custom_generate(pair), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        streamer = Collector()
        outputs.append(
            pair.target.lm.generate(ids, custom_generate=call, do_sample=True, max_new_tokens=12, streamer=streamer)
        )
        assert streamer.seen == outputs[-1][0].tolist() and streamer.ended
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


class Collector(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        self.seen += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


class Ban(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class Stop(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Tensor, **rest: Any) -> Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 2},
    "num_return_sequences": {"num_return_sequences": 2, "do_sample": True},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5]]},
    "sequence_bias": {"sequence_bias": [[[5], -10.0]]},
    "min_new_tokens": {"min_new_tokens": 4, "eos_token_id": 9},
    "suppress_tokens": {"suppress_tokens": [3]},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda batch, ids: [1, 2]},
    "typical_p": {"typical_p": 0.5, "do_sample": True},
    "epsilon_cutoff": {"epsilon_cutoff": 0.1, "do_sample": True},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "max_time": {"max_time": 5.0},
    "output_scores": {"output_scores": True, "return_dict_in_generate": False},
    "return_dict_in_generate": {"return_dict_in_generate": True},
    "Ban": {"logits_processor": LogitsProcessorList([Ban()])},
    "Stop": {"stopping_criteria": StoppingCriteriaList([Stop()])},
    "position_ids": {"position_ids": torch.tensor([[3, 4, 5, 6, 7]])},
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_would_change_the_output_is_refused_by_name(pair: Pair, name: str) -> None:
    """Penalties, biases, bans and processors of one's own among them (H10, H11)."""
    with pytest.raises(ConfigError, match=name):
        pair.target.lm.generate(
            torch.tensor(texts([5])), custom_generate=custom_generate(pair), max_new_tokens=6, pad_token_id=PAD,
            **REFUSED[name],
        )  # fmt: skip


def test_an_assistant_a_streamed_batch_holes_and_embeddings_are_refused(pair: Pair) -> None:
    call, model = custom_generate(pair), pair.target.lm
    rows = torch.tensor(texts([5, 5]))
    with pytest.raises(ConfigError, match="assistant_model"):
        model.generate(rows[:1], custom_generate=call, assistant_model=tiny("llama", seed=3), max_new_tokens=4)
    with pytest.raises(ConfigError, match="streamer"):
        model.generate(rows, custom_generate=call, streamer=Collector(), max_new_tokens=4)
    with pytest.raises(ConfigError, match="holes"):
        mask = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
        model.generate(rows, attention_mask=mask, custom_generate=call, max_new_tokens=4, pad_token_id=PAD)
    with pytest.raises(ConfigError, match="input"):
        model.generate(inputs_embeds=model.get_input_embeddings()(rows), custom_generate=call, max_new_tokens=4)


def test_another_model_is_refused(pair: Pair) -> None:
    with pytest.raises(PairError, match="target"):
        tiny("llama", seed=4).generate(torch.tensor([[1, 2]]), custom_generate=custom_generate(pair), max_new_tokens=4)
