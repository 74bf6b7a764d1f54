"""Ways to go on from a prompt: semiar's loop, transformers, a server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from environments import PeerError
from servers import Server
from transformers import StaticCache

from semiar.core.sampling import Sampling
from semiar.decoding import decode
from semiar.decoding.text import generator
from semiar.pair import Pair

Ids = list[int]


@dataclass(frozen=True)
class Answer:
    """What a server says it wrote."""

    tokens: int  # the end token included
    text: str


Way = Callable[[Ids], Ids | Answer]


def semiar_way(pair: Pair, count: int | None, most: int, sampling: Sampling) -> Way:
    """semiar's loop with this K; None = the drafter's own."""

    def run(prompt: Ids) -> Ids:
        found: Ids = []
        rng = generator(pair.target, 0)
        limits = pair.limits(most)
        for step in decode(
            pair.target, pair.drafter, [prompt], limits, sampling, rng=rng, num_speculative_tokens=count
        ):
            found += step.tokens[0]
        return found

    return run


def hf_way(model: Any, ends: Ids, most: int, sampling: Sampling, **options: Any) -> Way:
    """transformers' generate."""
    extra = {"do_sample": False} if sampling.greedy else {"do_sample": True, "temperature": sampling.temperature}
    extra |= {} if sampling.greedy else {"top_k": 0, "top_p": 1.0}

    def run(prompt: Ids) -> Ids:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, eos_token_id=ends, pad_token_id=ends[0],
                **extra, **options,
            )  # fmt: skip
        return out[0, len(prompt) :].tolist()

    return run


def compiled_way(model: Any, ends: Ids, most: int, length: int) -> Way:
    """transformers with a static cache and a compiled forward for one token; greedy."""
    step = torch.compile(model.forward, dynamic=False)

    def run(prompt: Ids) -> Ids:
        cache = StaticCache(config=model.config, max_cache_len=length + most)
        found: Ids = []
        with torch.inference_mode():
            out = model(torch.tensor([prompt]), past_key_values=cache, cache_position=torch.arange(len(prompt)))
            while True:
                found.append(int(out.logits[0, -1].argmax()))
                if found[-1] in ends or len(found) == most:
                    return found
                place = torch.tensor([len(prompt) + len(found) - 1])
                out = step(torch.tensor([found[-1:]]), past_key_values=cache, cache_position=place)

    return run


def server_way(url: str, model: str, ends: Ids, most: int, sampling: Sampling) -> Way:
    """A server with the OpenAI completions interface; whatever else would change its sampling is switched off."""
    settings = {
        "model": model, "max_tokens": most, "temperature": sampling.effective_temperature, "stop_token_ids": ends,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0,
    }  # fmt: skip

    def run(prompt: Ids) -> Answer:
        body = json.dumps(settings | {"prompt": prompt}).encode()
        request = urllib.request.Request(
            f"{url.rstrip('/')}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                found = json.load(reply)
            return Answer(found["usage"]["completion_tokens"], found["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace")[-2000:]
            raise PeerError(f"{url} answered {error.code}: {words}", "a completion", "read the server's log") from error
        except KeyError as error:
            raise PeerError(f"{url} sent no {error}", "'usage' and 'choices'", "leave this server out") from error

    return run


def in_turn(server: Server, way: Way) -> Way:
    """The same with its server awake only meanwhile."""

    def run(prompt: Ids) -> Ids | Answer:
        with server.turn():
            return way(prompt)

    return run
