"""Chats and what is learned of them."""

import json

from semiar.data.samples import Message


def asked(path, count):
    """Write a data file of so many short prompts with answers; returns its path."""
    rows = [{"prompt": "what " * (i + 1), "completion": f"answer {i}"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chat(*contents, system=None):
    roles = ("user", "assistant")
    turns = [Message(roles[i % 2], content) for i, content in enumerate(contents)]
    return [Message("system", system), *turns] if system else turns


def learned(renderer, example):
    """Runs of learned text."""
    text, runs = renderer.tokenizer, []
    for index, (token, target) in enumerate(zip(example.input_ids, example.targets, strict=True)):
        if target and index and example.targets[index - 1]:
            runs[-1].append(token)
        elif target:
            runs.append([token])
    return [text.decode(run) for run in runs]
