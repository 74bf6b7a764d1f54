"""The language-model loss on answer tokens only, from the state that the output head reads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from semiar.targets.target import Target
from semiar.training.chunked import chunked_sum
from semiar.training.learner import IGNORED

CHUNK = 512  # rows of the (rows, vocabulary) product that exist at a time


def answer_loss(target: Target, hidden: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy of the answer tokens; hidden (B, T, H), labels (B, T).

    The prompt's logits are never computed, which is most of the output head's work on data with short answers.
    """
    goal = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    keep = goal != IGNORED
    parameters = [p for p in target.lm.get_output_embeddings().parameters() if p.requires_grad]

    def one(state: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(target.head(state).float(), label, reduction="sum")

    return chunked_sum(one, (hidden[keep], goal[keep]), parameters, CHUNK)


@torch.no_grad()
def argmax_after(target: Target, hidden: Tensor) -> Tensor:
    """The target's greedy next token after every position, (B, T)."""
    flat = hidden.flatten(0, -2)
    picks = [target.head(flat[i : i + CHUNK]).argmax(-1) for i in range(0, len(flat), CHUNK)]
    return torch.cat(picks).view(hidden.shape[:-1])
