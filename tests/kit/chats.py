"""Chats and what is learned of them."""

from semiar.data.samples import Message


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
