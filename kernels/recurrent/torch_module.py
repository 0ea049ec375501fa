"""torch's own modules for a problem: the only place that spells their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..contract import Device, Problem

LONGEST = 65535  # steps of a sequence


def torch_module(problem: Problem) -> nn.RNNBase:
    """nn.LSTM, nn.GRU or nn.RNN for a problem, in its dtype and mode; without peepholes."""
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[problem.operator]
    module: nn.RNNBase = kind(**arguments(problem))
    return module.train(problem["mode"] == "training")


def unsupported_by_cudnn(problem: Problem, device: Device) -> str | None:
    """What cuDNN refuses of every operator, with the reason, or None."""
    if device.kind == "cuda" and problem["seq"] > LONGEST:
        return f"torch's cuDNN call fails for more than {LONGEST} steps"
    return None


def arguments(problem: Problem) -> dict[str, Any]:
    """Those of nn.LSTM, nn.GRU or nn.RNN."""
    own = {"lstm": {"proj_size": "projection"}, "gru": {}, "rnn": {"nonlinearity": "nonlinearity"}}
    return {
        "input_size": problem["input"],
        "hidden_size": problem["hidden"],
        "num_layers": problem["layers"],
        "bias": problem["bias"],
        "batch_first": problem["batch_first"],
        "dropout": problem["dropout"],
        "bidirectional": problem["bidirectional"],
        "dtype": getattr(torch, problem["dtype"]),
        **{argument: problem[name] for argument, name in own[problem.operator].items()},
    }
