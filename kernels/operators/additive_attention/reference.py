"""The equations, one head and decoder step after the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Problem


def build(problem: Problem) -> nn.Module:
    """The equations as a module with the parameters of the operator."""
    return Reference(problem)


class Reference(nn.Module):
    """query and memory in the problem's layout, and lengths [B], to the context and the weights."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        hidden, heads, self.additive = problem["hidden"], problem["heads"], problem["score"] == "additive"
        if problem["score"] != "dot":
            self.query = nn.Linear(hidden, hidden, bias=self.additive)
        if self.additive:
            self.key = nn.Linear(hidden, hidden, bias=False)
            self.score = nn.Linear(hidden // heads, heads, bias=False)
        if problem["layer_norm"]:
            self.norm = nn.LayerNorm(hidden // heads)

    def forward(self, query: Tensor, memory: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See the class."""
        time_major, heads = self.problem["layout"] == "time_major", self.problem["heads"]
        if time_major:
            query, memory = query.transpose(0, 1), memory.transpose(0, 1)
        places = torch.arange(memory.size(1), device=memory.device)
        valid = (places < (len(places) if lengths is None else lengths[:, None])).to(memory.dtype)  # [B, S]
        q = query if self.problem["score"] == "dot" else self.query(query)
        keys = self.key(memory) if self.additive else memory
        context, weights = [], []
        for n in range(heads):
            cut = slice(n * q.size(2) // heads, (n + 1) * q.size(2) // heads)
            for t in range(q.size(1)):
                share = self._scores(q[:, t, None, cut], keys[..., cut], n).softmax(1) * valid  # [B, S]
                share = share / share.sum(1, keepdim=True).clamp_min(1e-300)  # 0 where no source is valid
                weights.append(share)
                context.append((share[..., None] * memory[..., cut]).sum(1))  # [B, D]
        by_head = (len(q), heads, q.size(1), -1)
        all_weights = torch.stack(weights, 1).view(by_head)  # [B, N, T, S]
        joined = torch.stack(context, 1).view(by_head).transpose(1, 2).flatten(2)  # [B, T, H]
        return joined.transpose(0, 1) if time_major else joined, all_weights.squeeze(
            1
        ) if heads == 1 else all_weights

    def _scores(self, q: Tensor, keys: Tensor, n: int) -> Tensor:
        if not self.additive:
            return (q * keys).sum(2)
        e = self.norm(q + keys) if self.problem["layer_norm"] else q + keys  # [B, S, D]
        return torch.tanh(e) @ self.score.weight[n]
