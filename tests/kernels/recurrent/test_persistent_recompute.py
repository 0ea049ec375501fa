"""The persistent layers' host side without a GPU: kernels are stood in for by the same steps in torch."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import product

import pytest
import torch

from kernel_selector.kernels import devices, registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.recurrent.layer import GRU, LSTM
from kernel_selector.kernels.recurrent.persistent import layer, recompute
from kernel_selector.kernels.runtime import nvrtc

SIZES = {"hidden": 6, "input": 4, "batch": 3, "seq": 5, "dtype": "float64"}
BOTH = [(operator, name) for operator in ("lstm", "gru") for name in ("persistent", "persistent_recompute")]


class Loop:
    """kernel.cu's steps of one launch, a sequence at a time."""

    def __init__(self, shape, _dtype, _device):
        self.cell, self.hidden, self.batch, self.directions, self.backward = shape

    def __call__(self, arguments, seq, *, save):
        for direction in range(self.directions):
            for b in range(self.batch):
                length = seq if arguments.lengths is None else int(arguments.lengths[b])
                times = list(range(seq))
                if direction:
                    times[:length] = reversed(times[:length])
                run = self.back if self.backward else self.forth
                run(arguments, (direction, b, length, times), save)

    def y(self, arguments, direction, b):
        return arguments.y[:, b, direction * self.hidden :][:, : self.hidden]

    def forth(self, arguments, place, save):
        direction, b, length, times = place
        y, w = self.y(arguments, direction, b), arguments.w[direction]
        h, *c = (state[direction, b] for state in arguments.first)
        if direction:
            y[-1] = 0
        y[length + 1 if direction else 0] = h
        for s, t in enumerate(times):
            gates, q = arguments.gates[direction][t, b], w @ h
            if self.cell is LSTM:
                i, f, g, o = (gates + q).chunk(4)
                i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
                c = [f * c[0] + i * g]
                h, extra, kept = o * c[0].tanh(), c[0], (i, f, g, o)
            else:
                extra = q[2 * self.hidden :]
                if arguments.bias[direction] is not None:
                    extra = extra + arguments.bias[direction]
                r, z = (gates + q)[: 2 * self.hidden].sigmoid().chunk(2)
                n = (gates[2 * self.hidden :] + r * extra).tanh()
                h, kept = n + z * (h - n), (r, z, n)
            if save:
                gates.copy_(torch.cat(kept))
                arguments.extra[direction][t, b] = extra
            if not direction or s != length:
                y[t + 1] = 0 if direction and s > length else h
            if s + 1 == length:
                for last, value in zip(arguments.last, (h, *c), strict=True):
                    last[direction, b] = value

    def back(self, arguments, place, _save):
        direction, b, length, times = place
        y, w = self.y(arguments, direction, b), arguments.w[direction]
        carried = recurrent = torch.zeros_like(y[0])
        for s in reversed(range(len(times))):
            t, before = times[s], times[max(s - 1, 0)]
            gates, extra = arguments.gates[direction][t, b].clone(), arguments.extra[direction]
            dh, dc = recurrent.clone(), 0
            if arguments.dy is not None and s < length:
                dh += arguments.dy[t, b, direction * self.hidden :][: self.hidden]
            if arguments.d_last and s + 1 == length:
                dh += arguments.d_last[0][direction, b]
                dc = arguments.d_last[-1][direction, b]
            if self.cell is LSTM:
                (i, f, g, o), tc = gates.chunk(4), extra[t, b].tanh()
                c_before = extra[before, b] if s else arguments.first[1][direction, b]
                dc = dc + carried + dh * o * (1 - tc * tc)
                d = torch.cat(
                    (
                        dc * g * i * (1 - i),
                        dc * c_before * f * (1 - f),
                        dc * i * (1 - g * g),
                        dh * tc * o * (1 - o),
                    )
                )
                carried, recurrent = dc * f, d @ w
            else:
                (r, z, n), q = gates.chunk(3), extra[t, b]
                h_before = y[before + 1] if s else arguments.first[0][direction, b]
                dh += carried
                dn = dh * (1 - z) * (1 - n * n)
                d = torch.cat((dn * q * r * (1 - r), dh * (h_before - n) * z * (1 - z), dn))
                carried, recurrent = dh * z, torch.cat((d[: 2 * self.hidden], dn * r)) @ w
                arguments.d_extra[direction][t, b] = dn * r
            arguments.d_gates[direction][t, b] = d
        arguments.d_first[self.cell is LSTM][direction, b] = carried


def at(address, dtype, *shape):
    """The tensor that lies at an address."""
    kind = {torch.float64: ctypes.c_double, torch.int32: ctypes.c_int}[dtype]
    memory = (kind * torch.Size(shape).numel()).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def activate(cell, gates, extra, c):
    """A step of replay.cu on gates [G, 2] and what is kept beside them [2]; the next c."""
    gates[:2].sigmoid_()
    if cell is GRU:
        gates[2].add_(gates[0] * extra).tanh_()
        return None
    gates[2].tanh_()
    gates[3].sigmoid_()
    return extra.copy_(gates[1] * c + gates[0] * gates[2])


def replay(cell, dtype):
    """replay.cu thread by thread, on the memory that its argument points to."""

    def run(launch, parameters, _device):
        *addresses, seq, batch, hidden, directions, steps, parts = recompute.PARAMETERS.unpack(parameters)
        gates = [at(one, dtype, seq, batch, cell.gates, hidden) for one in addresses[:directions]]
        extra = [at(one, dtype, seq, batch, hidden) for one in addresses[2:][:directions]]
        c_0 = at(addresses[4], dtype, directions, batch, hidden) if cell is LSTM else None
        lengths = at(addresses[5], torch.int32, batch).tolist() if addresses[5] else [seq] * batch
        for block, thread in product(range(launch.blocks), range(launch.threads)):
            sequence, pair = divmod(block // parts * launch.threads + thread, hidden // 2)
            direction, b = divmod(sequence, batch)
            if direction >= directions:
                continue
            units = slice(2 * pair, 2 * pair + 2)
            c = None if c_0 is None else c_0[direction, b, units]
            first = block % parts * steps
            for s in range(first, min(first + steps, seq)):
                t = lengths[b] - 1 - s if direction and s < lengths[b] else s
                c = activate(cell, gates[direction][t, b, :, units], extra[direction][t, b, units], c)

    return run


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(layer, "loop", Loop)
    monkeypatch.setattr(recompute, "kernel", replay)


@pytest.mark.parametrize(("operator", "name"), BOTH)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"bias": False},
        {"bidirectional": True},
        {"bidirectional": True, "packed": True},
        {"packed": True, "layers": 2},
        {"seq": 1, "batch": 1},
        {"seq": 37, "batch": 1},  # more than a thread of gru's takes
        {"mode": "inference", "bidirectional": True},
    ],
    ids=str,
)
def test_passes_the_gate(operator, name, given):
    problem = registry.operator(operator).problem({**SIZES, **given})
    result = Gate(problem, "cpu").check(registry.implementation(operator, name).build(problem))
    assert result.passed, result.detail


def trained(operator, name):
    """A module, its input, and what it gives: (input, output, last states)."""
    problem = registry.operator(operator).problem(SIZES)
    module = registry.implementation(operator, name).build(problem)
    x = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    return module, (x, *module(x))


@pytest.mark.parametrize("operator", ["lstm", "gru"])
def test_keeps_nothing_but_the_arguments_and_the_output(operator):
    module, (x, y, _) = trained(operator, "persistent_recompute")
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, y, *module.parameters())}
    (layer, _), *_ = y.grad_fn.next_functions  # a user on a processor gets a copy of what is kept
    kept = [tensor for tensor in layer.saved_tensors if tensor is not None]
    others = [
        tensor
        for tensor in kept
        if tensor.untyped_storage().data_ptr() not in own and not torch.equal(tensor[1:], y)
    ]
    assert {tuple(tensor.shape) for tensor in others} <= {(1, 3, 6)}  # the initial states


@pytest.mark.parametrize(("operator", "name"), BOTH)
def test_a_graph_that_is_retained_gives_the_same_again(operator, name):
    module, (x, y, _) = trained(operator, name)
    leaves = (x, *module.parameters())
    first = torch.autograd.grad(y.sum(), leaves, retain_graph=True)
    again = torch.autograd.grad(y.sum(), leaves)
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("operator", ["lstm", "gru"])
def test_refuses_what_the_persistent_kernel_refuses(operator):
    h200 = devices.known_device("h200")
    implementation = registry.implementation(operator, "persistent_recompute")
    problem = registry.operator(operator).problem(hidden=512, batch=16, dtype="bfloat16")
    assert implementation.unsupported(problem, h200) is None
    assert "9.0" in implementation.unsupported(problem, replace(h200, compute_capability=(8, 0)))


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize("cell", [LSTM, GRU], ids=lambda cell: cell.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_compiles(cell, dtype):
    code = nvrtc.compiled(recompute.SOURCE, "90a", recompute.defines(cell, dtype))
    assert code.startswith(b"\x7fELF")
    assert b"replay" in code
