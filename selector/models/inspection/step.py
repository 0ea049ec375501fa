"""Training steps of an inspection, with hooks that record memory, operations and times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kernel_selector.kernels.measure.memory import measure_memory

from ...cost_model.features.roofline import matmul_rate
from ...errors import InvalidRequest
from ...selection.devices import resolve
from ..example import arguments_of, undisturbed
from .report import ModelInspection, ModuleShare
from .timeline import Timeline

TIMED_STEPS = 3
OUTSIDE = "(outside)"  # of all modules: the loss, and functions between steps


class Steps:
    """Training steps of a model, with hooks as each measurement needs."""

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        loss: Callable[[Any], Tensor] | None,
        optimizer: str | None,
    ) -> None:
        self.model = model
        self.args, self.kwargs = arguments_of(example_inputs)
        self._loss = loss or default_loss
        self._optimizer = optimizer
        self._paths = {module: path for path, module in model.named_modules()}
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        self.device = self._parameters[0].device
        if self.device.type not in ("cpu", "cuda"):
            raise InvalidRequest(
                f"{type(model).__name__} is on {self.device}: expected the CPU or a GPU of CUDA."
            )

    def inspection(self) -> ModelInspection:
        """Inspection from all measurements."""
        with self._as_it_was():
            self._step()  # libraries and compilers take what they need
            optimizer_bytes = self._optimizer_bytes()
            memory = measure_memory(lambda _, mark: self._step(mark), str(self.device))
            kept, flops = self._kept(), self._flops()
            times = self._times()
            weights = _storages(self.model.parameters()) + _storages(self.model.buffers())
            inputs = _storages(_tensors((self.args, self.kwargs)))
            maps = sum(kept.values())
            rate = self._rate()
            found = (kept, times, flops, rate)
            outside = replace(self._share(OUTSIDE, nn.Module(), *found), kind="-")
            modules = (*(self._share(path, module, *found) for module, path in self._paths.items()), outside)
        forward_ms, backward_ms = (sum(part.values()) for part in times)
        return ModelInspection(
            model=type(self.model).__name__,
            device=str(self.device),
            peak_bytes=weights + optimizer_bytes + inputs + memory.peak_bytes,
            weight_bytes=weights,
            gradient_bytes=_storages(self._parameters),
            feature_map_bytes=maps,
            optimizer_bytes=optimizer_bytes,
            input_bytes=inputs,
            workspace_bytes=max(memory.peak_bytes - maps, 0),
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            flops=sum(flops.values()),
            utilisation=_utilisation(sum(flops.values()), forward_ms + backward_ms, rate),
            modules=modules,
        )

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Context that restores gradients, buffers and random states; parameters never change."""
        before = [parameter.grad for parameter in self._parameters]
        with undisturbed(self.model):
            try:
                yield
            finally:
                for parameter, gradient in zip(self._parameters, before, strict=True):
                    parameter.grad = gradient

    def _forward(self) -> Tensor:
        return self._loss(self.model(*self.args, **self.kwargs))

    def _step(self, mark: Callable[[], None] = lambda: None) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._forward()
        mark()
        loss.backward()  # type: ignore[no-untyped-call]

    def _optimizer_bytes(self) -> int:
        """Bytes of the optimizer's state after a step with learning rate 0."""
        if self._optimizer is None:
            return 0
        optimizer = getattr(torch.optim, self._optimizer)(self._parameters, lr=0.0)
        optimizer.step()
        return _storages(_tensors([dict(one) for one in optimizer.state.values()]))

    def _kept(self) -> dict[str, int]:
        """Bytes that autograd saves, by the path of the innermost module at the time."""
        running: list[str] = []
        known = {one.untyped_storage()._cdata for one in (*self.model.parameters(), *self.model.buffers())}
        known |= {one.untyped_storage()._cdata for one in _tensors((self.args, self.kwargs))}
        alive: list[Tensor] = []  # so that no other storage gets the address of one that was counted
        found: dict[str, int] = defaultdict(int)

        def pack(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()  # else the graph would keep itself alive, by way of `alive`
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                known.add(storage._cdata)
                alive.append(tensor)
                found[running[-1] if running else OUTSIDE] += storage.nbytes()
            return tensor

        def enter(path: str) -> None:
            running.append(path)

        def leave(_path: str, _output: object) -> None:
            running.pop()

        with self._hooks(enter, leave), saved_tensors_hooks(pack, lambda tensor: tensor):
            self._forward()
        return found

    def _flops(self) -> dict[str, int]:
        """Floating-point operations of forward and backward by module path, without submodules.

        The backward pass of a module whose inputs have no gradients, as words have none, is not counted as
        its own: it takes what the modules inside it take at least.
        """
        counter = FlopCounterMode(display=False)
        with counter:
            self._step()
        counts = {path: sum(ops.values()) for path, ops in counter.get_flop_counts().items()}
        root = type(self.model).__name__
        whole = {path: counts.get(f"{root}.{path}" if path else root, 0) for path in self._paths.values()}
        own = {path: max(flops - _inside(path, whole), 0) for path, flops in whole.items()}
        return {**own, OUTSIDE: counts.get("Global", 0) - sum(own.values())}

    def _times(self) -> tuple[dict[str, float], dict[str, float]]:
        """Mean milliseconds of forward and of backward, by module path.

        A module's backward begins when the gradient of its output is there, and ends where the next one's is.
        An output that a part of the module gave, or the module before it, is theirs.
        """
        totals: tuple[dict[str, float], dict[str, float]] = defaultdict(float), defaultdict(float)
        for _ in range(TIMED_STEPS):
            lines = Timeline(self.device), Timeline(self.device)
            self._timed_step(*lines)
            for total, line in zip(totals, lines, strict=True):
                for path, spent in line.milliseconds().items():
                    total[path] += spent / TIMED_STEPS
        return totals

    def _timed_step(self, forward: Timeline, backward: Timeline) -> None:
        running: list[str] = []
        marked: set[tuple[Any, int]] = set()  # places in the graph whose gradient begins a module's backward

        def enter(path: str) -> None:
            running.append(path)
            forward.mark(path)

        def leave(path: str, output: object) -> None:
            running.pop()
            forward.mark(running[-1] if running else OUTSIDE)
            for tensor in _tensors(output):
                # what a module returns as a part of it gave it is that part's, whose hook came first
                place = (tensor.grad_fn or id(tensor), tensor.output_nr)
                if tensor.requires_grad and place not in marked:
                    marked.add(place)
                    tensor.register_hook(lambda _: backward.mark(path))  # type: ignore[no-untyped-call]

        for parameter in self._parameters:
            parameter.grad = None
        with self._hooks(enter, leave):
            forward.mark(OUTSIDE)
            loss = self._forward()
            forward.mark(OUTSIDE)
        backward.mark(OUTSIDE)
        loss.backward()  # type: ignore[no-untyped-call]
        backward.mark(OUTSIDE)

    @contextmanager
    def _hooks(self, enter: Callable[[str], None], leave: Callable[[str, object], None]) -> Iterator[None]:
        """Context with hooks around each module's forward pass."""
        with ExitStack() as stack:
            for module, path in self._paths.items():
                before = module.register_forward_pre_hook(lambda *_, path=path: enter(path), prepend=True)
                after = module.register_forward_hook(
                    lambda _module, _args, output, path=path: leave(path, output)
                )
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield

    def _rate(self) -> float | None:
        """Measured matrix product rate of the device in operations per second, in the dtype of most
        parameters.
        """
        found = resolve(str(self.device)).device
        dtype = str(max(self._parameters, key=Tensor.numel).dtype).removeprefix("torch.")
        return matmul_rate(found, dtype) if found.matmul_flops_per_s else None

    @staticmethod
    def _share(
        path: str, module: nn.Module, kept: Any, times: tuple[Any, Any], flops: Any, rate: float | None
    ) -> ModuleShare:
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        trained = [one for one in module.parameters(recurse=False) if one.requires_grad]
        forward, backward = (part.get(path, 0.0) for part in times)
        return ModuleShare(
            path=path or "(model)",
            kind=type(module).__name__,
            weight_bytes=_storages(own),
            gradient_bytes=_storages(trained),
            feature_map_bytes=kept.get(path, 0),
            forward_ms=forward,
            backward_ms=backward,
            flops=flops.get(path, 0),
            utilisation=_utilisation(flops.get(path, 0), forward + backward, rate),
        )


def default_loss(output: Any) -> Tensor:
    """Scalar loss of an output: a scalar, or the one named `loss`, else the sum of the means of all
    floating-point tensors.

    Raises InvalidRequest where there are none with a gradient.
    """
    named = getattr(output, "loss", None)
    if isinstance(named, Tensor):
        return named
    tensors = [one for one in _tensors(output) if one.requires_grad]
    if not tensors:
        raise InvalidRequest(
            "The model's output has no tensor with a gradient: give loss=, a function of it."
        )
    return tensors[0] if len(tensors) == 1 and tensors[0].dim() == 0 else sum_of_means(tensors)


def sum_of_means(tensors: list[Tensor]) -> Tensor:
    """Sum of the tensors' means in float32, so that 16-bit dtypes do not overflow."""
    return torch.stack([one.float().mean() for one in tensors]).sum()


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]


def _storages(tensors: Any) -> int:
    """Bytes of the tensors; shared storages count once."""
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())


def _inside(path: str, whole: Mapping[str, int]) -> int:
    """Milliseconds or operations inside a module: its own total, or the sum over its submodules if that is
    larger.
    """
    prefix = f"{path}." if path else ""
    inside = [one for one in whole if one and one.startswith(prefix) and "." not in one[len(prefix) :]]
    return sum(max(whole[one], _inside(one, whole)) for one in inside)


def _utilisation(flops: int, spent_ms: float, rate: float | None) -> float | None:
    return flops / (spent_ms * 1e-3) / rate if rate and flops and spent_ms else None
