"""The draft loss of a batch, and how well drafts agree with the target."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.core.calibration import count_by_bin
from semiar.data.batches import IGNORE as IGNORED
from semiar.drafters.base import Drafter
from semiar.training.chunked import chunked_sum
from semiar.training.config import LossSettings
from semiar.training.objectives import draft_loss, needs_teacher, parse_loss

CHUNK = 2048  # rows of the (rows, draft vocabulary) product that exist at a time


class DraftLearner(nn.Module):
    """Wraps a drafter so that calling it gives its loss: the module that data-parallel training sees.

    ``forward(hidden, tokens, labels)`` with hidden (B, T, F, H), tokens and labels (B, T) returns the summed weighted
    loss; divide by the number of answer tokens in the global batch, and accumulation changes nothing.
    """

    def __init__(self, drafter: Drafter, settings: LossSettings):
        super().__init__()
        self.drafter = drafter
        self.settings = settings
        self.weights = parse_loss(settings.terms)

    def forward(self, hidden: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
        anchors, scale = choose_anchors(labels, self.settings.anchors_per_sample if self.training else 0)
        states = torch.stack(list(self.drafter.unroll(hidden, tokens, anchors)), 2)  # (B, A, K, D)
        where, valid = targets_of(anchors, labels, states.shape[2])
        valid = valid & (scale > 0)[..., None]
        rows = torch.arange(len(tokens), device=tokens.device)[:, None, None].expand(where.shape)[valid]
        steps = torch.arange(states.shape[2], device=tokens.device)
        weight = scale[..., None] * self.settings.step_decay**steps
        label = self.columns(tokens[rows, where[valid]])
        before = hidden.detach()[rows, where[valid] - 1, -1]
        parameters = [p for p in self.drafter.head_parameters() if p.requires_grad]
        inputs = (states[valid], before, label, weight[valid], steps.expand(where.shape)[valid])
        loss = chunked_sum(self._chunk, inputs, parameters, CHUNK)
        extra = self.drafter.extra_loss(states, hidden, tokens, anchors, valid)
        return loss if extra is None else loss + (extra * weight)[valid].sum()

    def columns(self, ids: Tensor) -> Tensor:
        """Column of each id in the draft vocabulary; -1 = not in it."""
        vocab = self.drafter.vocab
        if vocab is None:
            return ids
        place = torch.searchsorted(vocab, ids).clamp(max=len(vocab) - 1)
        return torch.where(vocab[place] == ids, place, -1)

    def _chunk(self, state: Tensor, before: Tensor, label: Tensor, weight: Tensor, step: Tensor) -> Tensor:
        logits = self.drafter.head(state, step)
        teacher = None
        if needs_teacher(self.weights):
            with torch.no_grad():
                teacher = self.drafter.teacher(before)
        return (draft_loss(logits, teacher, label, self.weights) * weight).sum()

    @torch.no_grad()
    def agreement(self, hidden: Tensor, tokens: Tensor, labels: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        """Hits and trials (K, bins) of greedy drafts by the bin of their own probability, teacher-forced.

        Position k counts when 1..k-1 were hits.  ``choices`` (B, T) is the target's own argmax after each position.
        Only stretches where the text is what the target would have written count as the target's, so on its own
        outputs this is its acceptance exactly.
        """
        anchors, scale = choose_anchors(labels, 0)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        drafts, owns = [], []
        for step, state in enumerate(self.drafter.unroll(hidden, tokens, anchors)):
            logits = self.drafter.head(state, step)
            top, best = logits.max(-1)
            total = torch.stack([row.float().logsumexp(-1) for row in logits])  # row by row: in float32 they are large
            owns.append((top.float() - total).exp())
            drafts.append(best if self.drafter.vocab is None else self.drafter.vocab[best])
        guess = torch.stack(drafts, 2)  # (B, A, K)
        where, valid = targets_of(anchors, labels, guess.shape[2])
        valid = valid & (scale > 0)[..., None]
        hit = ((guess == choices[rows, where - 1]) & valid).long().cumprod(-1)
        reached = torch.cat([torch.ones_like(hit[..., :1]), hit[..., :-1]], -1) * valid
        own = torch.stack(owns, 2)
        return count_by_bin(own, hit), count_by_bin(own, reached)


def choose_anchors(labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Anchor positions (B, A) from which the next-but-one token is an answer token, and their weights (B, A).

    At most `most` random ones per row (0 = all); the weights make the sum over them estimate the sum over all.  Slots
    beyond a row's anchors have weight 0.
    """
    good = F.pad(labels[:, 2:] != IGNORED, (0, 2), value=False)  # good[a]: the label of step 1 from a is a target
    count = good.sum(1)
    width = max(1, int(count.max()))
    if most and width > most:
        order = (torch.rand(labels.shape, device=labels.device) + good).argsort(1, descending=True)
        width = most
    else:
        order = good.long().argsort(dim=1, descending=True, stable=True)
    anchors = order[:, :width]
    taken = count.clamp(max=width)
    real = torch.arange(width, device=labels.device) < taken[:, None]
    scale = (count / taken.clamp(min=1))[:, None] * real
    return torch.where(real, anchors, 0), scale


def targets_of(anchors: Tensor, labels: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Positions (B, A, K) that each anchor's steps predict, and whether the answer runs through to there."""
    where = anchors[..., None] + 2 + torch.arange(steps, device=labels.device)
    inside = where < labels.shape[1]
    where = where.clamp(max=labels.shape[1] - 1)
    rows = torch.arange(len(labels), device=labels.device)[:, None, None]
    return where, (inside & (labels[rows, where] != IGNORED)).long().cumprod(-1).bool()
