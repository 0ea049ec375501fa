"""Losses of training steps in two processes, by case: a program, whose arguments are names of cases.

Each case makes a model with replaced layers and wraps it; `torchs` is the model as it is. A JSON object is
printed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import selector

OVERRIDES = {"lstm": "hoisted", "linear": "column_major", "feed_forward": "recompute_activation"}


class Model(nn.Module):
    """x [B, T, 8] to y [B, 4], with buffers that change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.layer(self.lstm(x)[0]).mean(1)))
        return y


def example(seed: int) -> Tensor:
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(seed))


def optimized(model: nn.Module) -> nn.Module:
    report = selector.optimize(model, example(0), overrides=OVERRIDES)
    assert len(report.replaced) == 3, report
    return model


def sharded(model: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for part in (model.lstm, model.layer, model):
        fully_shard(part, mesh=mesh)
    return model


def of_a_wrapped_one(model: nn.Module) -> nn.Module:
    whole = DistributedDataParallel(model)
    optimized(whole)
    return whole


def refused(model: nn.Module) -> nn.Module:
    with pytest.raises(selector.InvalidRequest, match=r"model is sharded: lstm\.weight_ih_l0"):
        selector.optimize(sharded(model), example(0), arrangements=("ours",))
    return model


def restored(model: nn.Module) -> nn.Module:
    sharded(optimized(model))(example(0)).sum().backward()
    assert selector.restore(model) == 3
    return model


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager")


CASES: dict[str, Callable[[nn.Module], Any]] = {
    "torchs": DistributedDataParallel,
    "ddp": lambda model: DistributedDataParallel(optimized(model), static_graph=True),
    "optimized in ddp": of_a_wrapped_one,
    "fsdp2": lambda model: sharded(optimized(model)),
    "fsdp2, refused": refused,
    "fsdp2, restored": restored,
    "ddp, compiled": lambda model: compiled(DistributedDataParallel(optimized(model))),
    "fsdp2, compiled": lambda model: compiled(sharded(optimized(model))),
}


def losses(call: Callable[[Tensor], Tensor], model: nn.Module, rank: int) -> list[float]:
    """Mean losses of two steps; gradients of two calls add up before each."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        for half in (0, 2):
            loss = call(example(rank + half)).square().mean()
            loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(mean.item() / 2)
    return found


def run(rank: int, names: list[str], folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for name in names:
        model = Model()
        found[name] = losses(CASES[name](model), model, rank)
    (folder / str(rank)).write_text(json.dumps(found))
    dist.destroy_process_group()


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                status = 1
                try:
                    run(rank, names, Path(folder))
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if any(statuses):
            sys.exit(1)
        print((Path(folder) / "0").read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
