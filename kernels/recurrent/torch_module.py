"""torch's own modules for a problem: the only place that spells their arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..contract import Problem


def torch_module(problem: Problem) -> nn.RNNBase:
    """nn.LSTM, nn.GRU or nn.RNN for a problem, in its dtype and mode."""
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[problem.operator]
    module: nn.RNNBase = kind(**arguments(problem))
    return module.train(problem["mode"] == "training")


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
