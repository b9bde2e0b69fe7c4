"""RMSNorm + linear in torch: as models write it, and with the library's own norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cases
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


@dataclass
class Arm:
    """Something to time. ``result`` is the output of a call; ``note`` is for the reader."""

    call: Callable[[], object]
    result: Callable[[], np.ndarray] | None = None
    note: dict[str, Any] = field(default_factory=dict)


class Unfused(nn.Module):
    """The norm as models write it."""

    def __init__(self, case: cases.NormLinear) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.from_numpy(case.gamma.copy()).cuda())
        self.weight = nn.Parameter(torch.from_numpy(case.weight.copy()).cuda())
        self.epsilon = case.epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return F.linear(self.gamma * wide.to(x.dtype), self.weight)


class Library(Unfused):
    """The same with the library's own norm; ``transposed``: the weight as (hidden, out)."""

    def __init__(self, case: cases.NormLinear, *, transposed: bool) -> None:
        super().__init__(case)
        self.other = self.weight.detach().t().contiguous() if transposed else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = F.rms_norm(x, self.gamma.shape, self.gamma, self.epsilon)
        return F.linear(normed, self.weight) if self.other is None else normed @ self.other


def torch_arm(call: Callable[[], torch.Tensor], **note: Any) -> Arm:
    """A CUDA graph of ``call``, captured on the current stream."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        out = call()

    def result() -> np.ndarray:
        out.fill_(float("nan"))
        graph.replay()
        return out.cpu().numpy()

    return Arm(graph.replay, result, note)
