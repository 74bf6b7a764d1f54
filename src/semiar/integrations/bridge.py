"""A pair as ``model.generate(..., custom_generate=...)``, for code that already speaks transformers::

    outputs = pair.target.lm.generate(**inputs, custom_generate=custom_generate(pair), max_new_tokens=64)

Greedy decoding gives the ids of the plain call, sampling draws from the same law.  What the loop does not do is refused
by name: transformers would otherwise drop it without a word.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.generation import logits_process, stopping_criteria

from semiar.core.sampling import Sampling
from semiar.decoding.loop import Limits, Step, decode
from semiar.errors import ConfigError, PairError
from semiar.pair import Pair

WARPERS = {  # in the order of transformers, which is that of `Sampling` too
    logits_process.TemperatureLogitsWarper: "temperature",
    logits_process.TopKLogitsWarper: "top_k",
    logits_process.TopPLogitsWarper: "top_p",
    logits_process.MinPLogitsWarper: "min_p",
}
OPTIONS = {  # class that transformers makes of an option, where the name does not say it
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "NoRepeatNGramLogitsProcessor": "no_repeat_ngram_size",
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size",
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty",
    "SequenceBiasLogitsProcessor": "sequence_bias",
    "NoBadWordsLogitsProcessor": "bad_words_ids",
    "MinLengthLogitsProcessor": "min_length",
    "MinNewTokensLengthLogitsProcessor": "min_new_tokens",
    "PrefixConstrainedLogitsProcessor": "prefix_allowed_tokens_fn",
    "ForcedBOSTokenLogitsProcessor": "forced_bos_token_id",
    "ForcedEOSTokenLogitsProcessor": "forced_eos_token_id",
    "InfNanRemoveLogitsProcessor": "remove_invalid_values",
    "ExponentialDecayLengthPenalty": "exponential_decay_length_penalty",
    "SuppressTokensLogitsProcessor": "suppress_tokens",
    "SuppressTokensAtBeginLogitsProcessor": "begin_suppress_tokens",
    "TopHLogitsWarper": "top_h",
    "TypicalLogitsWarper": "typical_p",
    "EpsilonLogitsWarper": "epsilon_cutoff",
    "EtaLogitsWarper": "eta_cutoff",
    "WatermarkLogitsProcessor": "watermarking_config",
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config",
    "MaxTimeCriteria": "max_time",
    "StopStringCriteria": "stop_strings",
}
MODES = (  # each of them asks for another way of decoding
    "penalty_alpha", "dola_layers", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "constraints",
    "force_words_ids",
)  # fmt: skip
RESULTS = ("return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states")
HIDDEN = ("streamer", "assistant_model")  # arguments of `generate` that no callable is given
IGNORED = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position"}


def custom_generate(
    pair: Pair, *, num_speculative_tokens: int | None = None, rule: str = "exact"
) -> Callable[..., Tensor]:
    """What ``model.generate(custom_generate=...)`` takes; the model has to be the pair's own target.

    Understands ``do_sample``, ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``max_new_tokens``, ``max_length``, the
    end tokens of the generation config, left- or right-padded batches, and a ``streamer`` for one prompt; sampling is
    seeded by torch's global generator.  Returns the prompts and what follows, padded, as ``generate`` does.  A row ends
    at the model's context limit at the latest.  Raises ``ConfigError`` naming any other option that would change the
    output, and ``PairError`` for another model.
    """

    def generate(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor:
        hidden = _hidden_arguments()
        if model is not pair.target.lm and model is not pair.target.model:
            raise PairError(
                f"generate() was called on a {type(model).__name__} that is not this pair's target",
                "pair.target.lm",
                "the drafter was trained for that model",
            )
        _refuse(generation_config, hidden)
        _refuse_inputs(input_ids, model_kwargs)
        limits = _limits(stopping_criteria, input_ids.shape[1])
        sampling = _sampling(logits_processor, bool(generation_config.do_sample))
        prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
        rng = torch.Generator(device=pair.target.device).manual_seed(int(torch.randint(2**62, ())))
        steps = decode(
            pair.target, pair.drafter, prompts, limits, sampling, rng=rng,
            num_speculative_tokens=num_speculative_tokens, rule=rule,
        )  # fmt: skip
        return _padded(input_ids, _collect(steps, len(prompts), hidden.get("streamer")), generation_config)

    return generate


def _collect(steps: Iterable[Step], count: int, streamer: Any) -> list[list[int]]:
    """New ids of every row; a streamer gets them one by one."""
    if streamer is not None and count > 1:
        raise ConfigError("streamer with several prompts", "one prompt", "leave streamer out")
    rows: list[list[int]] = [[] for _ in range(count)]
    for step in steps:
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row].extend(tokens)
            if streamer is not None:
                for token in tokens:
                    streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return rows


def _hidden_arguments() -> dict[str, Any]:
    """``streamer`` and ``assistant_model`` of the `generate` that calls: it hands neither on to a callable.

    Private: they are read from the variables of transformers' own frame, where they have these names.  Raises
    ``ConfigError`` when transformers has other names now, as a streamer would be dropped without a word.
    """
    frame = inspect.currentframe()
    own = None if frame is None else frame.f_back
    caller = None if own is None else own.f_back
    if caller is None or not str(caller.f_globals.get("__name__")).startswith("transformers."):
        return {}  # called by something else, which has no such arguments
    missing = [name for name in HIDDEN if name not in caller.f_locals]
    if missing:
        raise ConfigError(
            f"transformers {transformers.__version__} calls a custom_generate from '{caller.f_code.co_name}', where "
            f"{' and '.join(missing)} cannot be read",
            "a version whose `generate` calls it itself",
            "use semiar.generate, or another version of transformers",
        )
    return {name: caller.f_locals[name] for name in HIDDEN}


def _refuse(config: Any, hidden: dict[str, Any]) -> None:
    """Raise for options that ask for something else than the loop's greedy decoding or sampling."""
    for name in ("num_beams", "num_return_sequences", "num_beam_groups"):
        if (getattr(config, name, None) or 1) > 1:
            raise _unsupported(f"{name} {getattr(config, name)}")
    for name in (*MODES, *RESULTS):
        if getattr(config, name, None):
            raise _unsupported(f"{name} {getattr(config, name)!r}")
    if config.cache_implementation == "quantized":
        raise _unsupported("cache_implementation 'quantized'")
    if hidden.get("assistant_model") is not None:
        raise _unsupported("assistant_model")


def _refuse_inputs(input_ids: Tensor, given: dict[str, Any]) -> None:
    """Raise for model inputs that the loop would not pass on."""
    other = [name for name, value in given.items() if name not in IGNORED and value is not None]
    if other or input_ids.shape[1] == 0:
        raise _unsupported(", ".join(other) or "a call without input_ids", "input_ids and attention_mask")
    past = given.get("past_key_values")
    if past is not None and past.get_seq_length() > 0:
        raise _unsupported("past_key_values that are not empty")
    mask, places = given.get("attention_mask"), given.get("position_ids")
    if places is not None:
        seen = torch.ones_like(input_ids) if mask is None else mask.long()
        if bool(((places != seen.cumsum(-1) - 1) & (seen > 0)).any()):
            raise _unsupported("position_ids of your own")


def _limits(criteria: Any, width: int) -> Limits:
    longest, ends = None, []
    for one in criteria:
        if type(one) is stopping_criteria.MaxLengthCriteria:
            longest = one.max_length if longest is None else min(longest, one.max_length)
        elif type(one) is stopping_criteria.EosTokenCriteria:
            ends += one.eos_token_id.flatten().tolist()
        else:
            raise _unsupported(_name(one))
    if longest is None:
        raise ConfigError("no limit on the length", "max_new_tokens or max_length")
    return Limits(max(0, longest - width), tuple(dict.fromkeys(ends)))


def _sampling(processors: Any, sampled: bool) -> Sampling:
    """The settings that transformers made its processors of; anything else than these is refused."""
    used = [one for one in processors if type(one) is not logits_process.LogitNormalization]  # keeps the law as it is
    other = [_name(one) for one in used if type(one) not in WARPERS or not sampled or not _plain(one)]
    if other:
        raise _unsupported(", ".join(other))
    found = {WARPERS[type(one)]: one for one in used}
    if len(found) < len(used) or list(found) != [name for name in WARPERS.values() if name in found]:
        raise _unsupported(
            f"{', '.join(WARPERS[type(one)] for one in used)} in this order", "each once, temperature first"
        )
    values = {name: getattr(one, name) for name, one in found.items()}
    return Sampling(**{"temperature": 1.0, **values}) if sampled else Sampling(temperature=0.0)


def _plain(warper: Any) -> bool:
    """Whether a filter drops tokens wholly and has no minimum that it keeps."""
    return getattr(warper, "filter_value", -torch.inf) == -torch.inf and getattr(warper, "min_tokens_to_keep", 1) == 1


def _name(one: Any) -> str:
    kind = type(one).__name__
    return f"{OPTIONS[kind]} ({kind})" if kind in OPTIONS else kind


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Ids of every row without its padding."""
    if mask is None:
        return input_ids.tolist()
    keep = mask.bool()
    if bool(((keep[:, 1:] & ~keep[:, :-1]).sum(1) + keep[:, 0] > 1).any()):
        raise _unsupported("an attention_mask with holes", "padding at the left or right end only")
    return [row[seen].tolist() for row, seen in zip(input_ids, keep, strict=True)]


def _padded(input_ids: Tensor, rows: list[list[int]], config: Any) -> Tensor:
    pad = config._pad_token_tensor
    new = input_ids.new_full((len(rows), max(map(len, rows))), 0 if pad is None else int(pad))
    for row, tokens in zip(new, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=new.dtype)
    return torch.cat([input_ids, new], 1)


def _unsupported(
    what: str, expected: str = "greedy decoding, or sampling with the filters of `Sampling`"
) -> ConfigError:
    return ConfigError(f"custom_generate does not support {what}", expected)
