"""A checkout of kernels/ alone, with candidates planted in it that misbehave, each in its own way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kernel_selector.kernels import registry

MODULE = '''"""Planted."""

import ctypes
import os
import signal
import time

import torch
from torch import nn

LEAK = []


class Planted(nn.LSTM):
    calls = 0

    def forward(self, x, state=None):
        self.calls += 1
        y, final = super().forward(x, state)
        {body}
        return y, final


def unsupported(problem, device):
    {refusal}


def build(problem):
    return Planted(
        problem["input"], problem["hidden"], problem["layers"], bias=problem["bias"],
        bidirectional=problem["bidirectional"], dtype=getattr(torch, problem["dtype"]),
    )
'''

BODIES = {
    "segfault": "ctypes.string_at(0)",
    # passes the gate, dies while it is timed
    "late_abort": "self.calls > 6 and (os.write(2, b'last words'), os.abort())",
    "hang": "time.sleep(10**6)",
    "wrong": "y = y * 1.01",
    "wrong_gradient": "y = y.detach() + 0.5 * (y - y.detach())",
    "raises": 'raise ValueError("planted fault\\nwith a second line")',
    "raises_noise": r'raise ValueError("planted \0 and \udcff and \x1b[31m" + "x" * 10**5)',
    "exits": "raise SystemExit(3)",
    "greedy": "torch.empty(2**50)",
    "late_greedy": "self.calls > 6 and torch.empty(2**50)",
    "leaks": "LEAK.append(torch.ones(2**16))",
    "prints": "os.write(1, b'{\"event\": \"done\"}\\n'); print('not a record', flush=True)",
}


def checkout(folder: Path, *names: str) -> Path:
    """A folder with kernels/ in it, and the named candidates planted among the implementations of lstm."""
    shutil.copytree(registry.ROOT, folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for name in names:
        plant(folder, name, body=BODIES[name])
    return folder


def plant(folder: Path, name: str, *, body: str = "pass", refusal: str = "return None") -> None:
    """One more implementation of lstm."""
    source = MODULE.replace("{body}", body).replace("{refusal}", refusal)
    (folder / "kernels/operators/lstm" / f"{name}.py").write_text(source)


def command(*words: str, device: str = "cpu") -> list[str]:
    """`python -m kernels.measure ...` on the CPU, or another device."""
    return [sys.executable, "-m", "kernels.measure", *words, "--device", device]


def measure(
    folder: Path, *words: str, device: str = "cpu", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a checkout."""
    return subprocess.run(
        command(*words, device=device),
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
