"""Time that the host takes for a launched layer, forward and backward: ours beside torch's own.

    python -m benchmarks.kernels.host_time --device cuda:0
    python -m benchmarks.kernels.host_time --device cuda:0 --profile layer_norm
    python -m benchmarks.kernels.host_time --smoke

Layers are drop-in modules and torch's own, at sizes so small that a GPU is done before the host: what a burst
of steps takes until the last launch, without waiting for the GPU, is the host's. Bursts of all take turns.
Outputs and gradients are judged first, against float64 and within what the gate allows. Printed are
microseconds a step, of torch's own too, and their ratio; `--profile` prints in which functions of Python a
step spends them.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import selector
from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import write_result
from kernel_selector.kernels.gate.tolerance import TOLERANCES, Error, scales
from kernel_selector.kernels.measure import default_torch_device, identify
from selector.models.rewriting.equivalence import results

ROWS, FEATURES = 64, 256
HEADS, POSITIONS, DEPTH = 4, 32, 64
STEPS, WARM = 20, 30  # of a burst, and before the first one
LAUNCHES = 100

Layer = Callable[..., Tensor]


class Case(NamedTuple):
    """A layer of torch's, ours by implementation, and the shapes of its inputs."""

    torchs: Callable[[], Layer]
    ours: Callable[[str], Layer]
    implementations: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...] = ((ROWS, FEATURES),)


_HEADS = ((2, HEADS, POSITIONS, DEPTH),) * 3
_NN = selector.nn
CASES: Mapping[str, Case] = {
    "layer_norm": Case(
        lambda: nn.LayerNorm(FEATURES),
        lambda name: _NN.LayerNorm(FEATURES, implementation=name),
        ("from_output", "fused", "recompute"),
    ),
    "rms_norm": Case(
        lambda: nn.RMSNorm(FEATURES),
        lambda name: _NN.RMSNorm(FEATURES, implementation=name),
        ("from_output", "fused", "recompute"),
    ),
    "gelu": Case(nn.GELU, lambda name: _NN.GELU(implementation=name), ("from_output", "fused")),
    "silu": Case(nn.SiLU, lambda name: _NN.SiLU(implementation=name), ("from_output", "fused")),
    "relu": Case(nn.ReLU, lambda name: _NN.ReLU(implementation=name), ("bit_mask", "from_output")),
    "linear": Case(
        lambda: nn.Linear(FEATURES, FEATURES),
        lambda name: _NN.Linear(FEATURES, FEATURES, implementation=name),
        ("column_major", "cublas_then_fused", "split_k"),
    ),
    "attention": Case(
        lambda: scaled_dot_product_attention,
        lambda name: _NN.ScaledDotProductAttention(implementation=name),
        ("fused", "recompute", "warpgroup", "sdpa_flash"),
        _HEADS,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options = _parser().parse_args(arguments)
    torch_device = "cpu" if options.smoke else options.device or default_torch_device()
    torch.manual_seed(1)  # those that results are weighted by are drawn from 0
    if options.profile:
        _profile(steps_of(CASES[options.profile], torch_device)[0])
        return 0
    folder = result_folder(options, "host-time")
    rows, reasons = [], []
    for name in options.only or CASES:
        steps, refused = steps_of(CASES[name], torch_device)
        reasons += [f"{name}.{one}" for one in refused]
        rows += _rows(name, timed(steps, torch_device, 2 if options.smoke else options.bursts))
    payload = {"launch_us": launch_us(torch_device), "dtype": "bfloat16", "rows": rows, "left_out": reasons}
    print(
        f"a launch of this host takes {payload['launch_us']:.1f} us; left out: {'; '.join(reasons) or 'none'}"
    )
    title = f"host_time_{identify(torch_device).key}"
    print(write_result(title, payload, torch_device=torch_device, commit=options.commit, folder=folder))
    return 0


def steps_of(case: Case, torch_device: str) -> tuple[dict[str, Callable[[], None]], list[str]]:
    """Steps, forward and backward, of torch's layer and of ours by name, and why others are left out."""
    inputs = [
        torch.randn(shape, device=torch_device, dtype=torch.bfloat16, requires_grad=True)
        for shape in case.inputs
    ]
    torchs = _placed(case.torchs(), torch_device)
    judged = Judged(torchs, inputs)
    steps, refused = {"torch": _step(torchs, inputs)}, []
    for name in case.implementations:
        layer = _placed(case.ours(name), torch_device)
        if isinstance(layer, nn.Module) and isinstance(torchs, nn.Module):
            layer.load_state_dict(torchs.state_dict())
        try:
            fault = judged.fault(layer)
        except selector.SelectorError as error:
            refused.append(f"{name}: {error}")
            continue
        if fault:
            refused.append(f"{name}: {fault}")
            continue
        steps[name] = _step(layer, inputs)
    return steps, refused


class Judged:
    """Results of torch's layer in float64, and its errors in 16 bits, by which those of ours are judged."""

    def __init__(self, torchs: Layer, inputs: Sequence[Tensor]) -> None:
        self._inputs = inputs
        wide = copy.deepcopy(torchs).double() if isinstance(torchs, nn.Module) else torchs
        self._expected = _results(wide, [one.detach().double().requires_grad_() for one in inputs])
        self._scales = scales(self._expected)
        self._torchs = self._errors(torchs)

    def fault(self, layer: Layer) -> str:
        """First result that is off by more than the gate allows, in words; empty where there is none."""
        for name, error in self._errors(layer).items():
            kind = "gradient" if name.startswith("gradient") else "output"
            allowed = self._torchs[name].allowed(TOLERANCES[torch.bfloat16, kind])
            if not (error.rms <= allowed.rms and error.peak <= allowed.peak):
                return f"{name} is off by {error.rms:.2g} RMS of its size, allowed is {allowed.rms:.2g}"
        return ""

    def _errors(self, layer: Layer) -> dict[str, Error]:
        return {
            name: Error.of(one, self._expected[name], self._scales[name])
            for name, one in _results(layer, self._inputs).items()
        }


def timed(steps: Mapping[str, Callable[[], None]], torch_device: str, bursts: int) -> dict[str, list[float]]:
    """Microseconds of the host for a step, by name, burst by burst in turns."""
    for step in steps.values():
        for _ in range(WARM):
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(bursts):
        for name, step in steps.items():
            _wait(torch_device)
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            found[name].append((time.perf_counter() - start) / STEPS * 1e6)
    _wait(torch_device)
    return found


def launch_us(torch_device: str) -> float:
    """Microseconds of the host for a launch of torch's smallest operation, the fastest of ten bursts."""
    one = torch.zeros(1, device=torch_device)
    found = []
    for _ in range(10):
        _wait(torch_device)
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            one.zero_()
        found.append((time.perf_counter() - start) / LAUNCHES * 1e6)
    return round(min(found), 2)


def _rows(name: str, found: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    torchs = found["torch"]
    rows = []
    for one, took in found.items():
        ratio = median(mine / theirs for mine, theirs in zip(took, torchs, strict=True))
        rows.append(
            {
                "layer": name,
                "implementation": one,
                "us": round(median(took), 2),
                "ratio": round(ratio, 3),
                "bursts": len(took),
            }
        )
        print(f"{name:12} {one:20} {median(took):8.1f} us, {ratio:.2f} times torch's")
    return rows


def _profile(steps: Mapping[str, Callable[[], None]]) -> None:
    for name, step in steps.items():
        for _ in range(WARM):
            step()
        profile = cProfile.Profile()
        with profile:
            for _ in range(10 * STEPS):
                step()
        print(f"{name}, {10 * STEPS} steps:")
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)


def _placed(layer: Layer, torch_device: str) -> Layer:
    return layer.to(torch_device, torch.bfloat16) if isinstance(layer, nn.Module) else layer


def _step(layer: Layer, inputs: Sequence[Tensor]) -> Callable[[], None]:
    gradient = torch.ones_like(layer(*inputs).detach())
    wanted = _wanted(layer, inputs)

    def step() -> None:
        torch.autograd.grad(layer(*inputs), wanted, gradient)

    return step


def _results(layer: Layer, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    return results(layer if isinstance(layer, nn.Module) else _Called(layer), tuple(inputs), gradients=True)


class _Called(nn.Module):
    """Module that calls a function."""

    def __init__(self, function: Layer) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Output of the function."""
        return self.function(*inputs)


def _wanted(layer: Layer, inputs: Sequence[Tensor]) -> list[Tensor]:
    return [*inputs, *(layer.parameters() if isinstance(layer, nn.Module) else ())]


def _wait(torch_device: str) -> None:
    if torch_device != "cpu":
        torch.cuda.synchronize()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    parser.add_argument(
        "--only", nargs="+", choices=CASES, metavar="NAME", help="of the layers (default: all)"
    )
    parser.add_argument(
        "--profile", choices=CASES, metavar="NAME", help="functions of a layer's steps, and stop"
    )
    parser.add_argument(
        "--bursts", type=int, default=40, help=f"of {STEPS} steps each (default: %(default)s)"
    )
    add_result_arguments(parser, smoke="two bursts on the CPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
