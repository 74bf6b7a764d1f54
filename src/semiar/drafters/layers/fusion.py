"""Where h_p and h_q meet: what the draft head reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.layers.heads import DraftHead
from semiar.drafters.layers.norm import RMSNorm


class Features(nn.Module):
    """h_p as the small models read it: the normed last state, or several layers' states fused into its size."""

    def __init__(self, size: int, layers: int):
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm(size) for _ in range(layers))
        self.join = nn.Linear(layers * size, size, bias=False) if layers > 1 else None

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, n, F, H) to (B, n, H)."""
        parts = [norm(state) for norm, state in zip(self.norms, hidden.unbind(-2), strict=True)]
        return parts[0] if self.join is None else self.join(torch.cat(parts, -1))


class Fusion(nn.Module):
    """``z = h_t + MLP(norm([h_q ; h_p]))``; zero-initialised, so that training starts at the target's own head.

    With ``direct`` a matrix on h_q is added: what was copied needs no way round through the MLP.
    """

    def __init__(self, size: int, with_distant: bool, direct: bool = False):
        super().__init__()
        width = size * (2 if with_distant else 1)
        self.with_distant = with_distant
        self.norm, self.wide, self.narrow = RMSNorm(width), nn.Linear(width, 2 * size), nn.Linear(2 * size, size)
        self.direct = nn.Linear(size, size, bias=False) if direct else None
        nn.init.zeros_(self.narrow.weight)
        nn.init.zeros_(self.narrow.bias)
        if self.direct is not None:
            nn.init.zeros_(self.direct.weight)

    def forward(self, last: Tensor, distant: Tensor, recent: Tensor | None, step: int) -> Tensor:
        assert recent is not None
        read = torch.cat([recent, distant], -1) if self.with_distant else recent
        state = last + self.narrow(F.silu(self.wide(self.norm(read))))
        return state if self.direct is None else state + self.direct(recent)

    def logits(self, head: DraftHead, state: Tensor) -> Tensor:
        """Logits of what `forward` gave."""
        return head(state)


class ParallelFusion(nn.Module):
    """Medusa heads ``h_t + silu(A_k h_t)``, zero-initialised: h_q is empty, all K positions at once."""

    def __init__(self, size: int, steps: int):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(size, size) for _ in range(steps))
        for head in self.heads:
            assert isinstance(head, nn.Linear)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, last: Tensor, distant: Tensor, recent: Tensor | None, step: int) -> Tensor:
        last = last.to(self.heads[step].weight.dtype)  # type: ignore[arg-type]
        return last + F.silu(self.heads[step](last))

    def logits(self, head: DraftHead, state: Tensor) -> Tensor:
        """Logits of what `forward` gave."""
        return head(state)


class AdditiveFusion(ParallelFusion):
    """``logits = Head(U_k(h_p)) + B(h_q)``: parallel heads plus a low-rank bias from the drafted tokens.

    DeepSeek's DSpark and Domino (2026) have this form on a heavier backbone.  The state is (..., H + rank).
    """

    def __init__(self, size: int, steps: int, rows: int, rank: int):
        super().__init__(size, steps)
        self.size = size
        self.down = nn.Linear(size, rank, bias=False)
        self.bias = nn.Linear(rank, rows, bias=False)
        nn.init.zeros_(self.bias.weight)

    def forward(self, last: Tensor, distant: Tensor, recent: Tensor | None, step: int) -> Tensor:
        assert recent is not None
        parallel = super().forward(last, distant, None, step)
        return torch.cat([parallel, self.down(recent).to(parallel.dtype)], -1)

    def logits(self, head: DraftHead, state: Tensor) -> Tensor:
        product = head.product(state[..., : self.size])
        return head.finish(product + self.bias(state[..., self.size :].to(self.bias.weight.dtype)))
