"""The arguments of transformers' `generate` that it hands to no callable, read where it keeps them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import transformers
from kit.drafters import noisy_drafter
from kit.models import tiny
from kit.tokenizers import byte_tokenizer
from transformers.generation import GenerationMixin
from transformers.generation.streamers import BaseStreamer

from semiar.errors import ConfigError
from semiar.integrations.bridge import HIDDEN, custom_generate
from semiar.pair import Pair
from semiar.targets import Target

LOOK_AT = f"transformers {transformers.__version__} changed it; look at `_hidden_arguments` in integrations/bridge.py"


class Silent(BaseStreamer):
    def put(self, value: Any) -> None: ...

    def end(self) -> None: ...


def test_generate_itself_calls_and_keeps_both_under_these_names() -> None:
    seen: list[tuple[str, Any]] = []

    def probe(model: Any, input_ids: Any, **rest: Any) -> Any:
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        caller, kept = frame.f_back, frame.f_back.f_locals
        assert str(caller.f_globals["__name__"]).startswith("transformers."), LOOK_AT
        seen.append((caller.f_code.co_name, {name: kept.get(name, "nothing") for name in HIDDEN}))
        assert not set(HIDDEN) & set(rest), f"both are handed on now, no frame has to be read: {LOOK_AT}"
        return input_ids

    model, streamer = tiny("llama"), Silent()
    model.generate(torch.tensor([[1, 2]]), custom_generate=probe, streamer=streamer, max_new_tokens=2)  # type: ignore[operator]
    assert seen == [("generate", {"streamer": streamer, "assistant_model": None})], LOOK_AT
    assert set(HIDDEN) <= set(inspect.signature(GenerationMixin.generate).parameters), LOOK_AT


def test_a_transformers_that_hides_them_otherwise_is_refused_by_name() -> None:
    model = tiny("llama")
    call = custom_generate(Pair(Target(model), noisy_drafter(model), byte_tokenizer(), "tiny"))
    later: dict[str, Any] = {"__name__": "transformers.generation.later"}
    exec("def run(call, model, ids, streamer):\n    return call(model, ids, None, None, None)\n", later)
    with pytest.raises(ConfigError, match=r"'run'.* assistant_model cannot be read"):
        later["run"](call, model, torch.tensor([[1, 2]]), None)
