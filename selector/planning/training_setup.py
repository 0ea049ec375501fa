"""Setup of a model's training, as far as it costs memory and time."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.contract.errors import shorten, suggest

from ..errors import InvalidRequest
from ..workloads.model import ELEMENT_BYTES, Model


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Tensors of the parameters' size: kept as state, taken for a moment, and read or written in a step."""

    state: int
    temporary: int
    passes: int


OPTIMIZERS = {
    "none": Optimizer(state=0, temporary=0, passes=0),
    "sgd": Optimizer(state=0, temporary=0, passes=3),
    "momentum": Optimizer(state=1, temporary=0, passes=7),
    # torch's default for a GPU works on lists of tensors, one operation after the other
    "adamw": Optimizer(state=2, temporary=1, passes=20),
    "fused_adamw": Optimizer(state=2, temporary=0, passes=7),
}

# whether y determines what these would keep y for depends on the weights, which nobody can look at while a
# graph is captured: there they keep as much as `fused`, and not what was measured of them outside of graphs
AS_FUSED_IN_GRAPHS = frozenset(
    f"{norm}.from_output" for norm in ("dropout_add_norm", "layer_norm", "rms_norm")
)


def _implementations() -> set[str]:
    """What an implementation can be called, with its operator and without: every operator's are looked up."""
    pairs = (
        (operator, name) for operator in registry.operators() for name in registry.implementations(operator)
    )
    return {word for operator, name in pairs for word in (name, f"{operator}.{name}")}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Optimizer, precision and repetition of a model's training steps, as a plan assumes them.

    `optimizer` is one of OPTIMIZERS. With `accumulate` micro-batches a step, gradients stay from one to
    the next. `recompute` allows whole blocks to be run twice. `cuda_graphs` says that steps are replayed, and
    launching costs nothing; `replayed` that `selector.replay` does it for blocks, whose graphs have memory of
    their own and of which none is run twice. `parameter_dtype` is what weights are stored in, where it is not
    what is computed in (autocast keeps a copy of them in that). `margin` is the share of the memory limit
    that a plan leaves free: for fragments, and because bytes of other sizes are foretold to a few per cent.
    `exclude` names implementations that are not wanted, "torch_compile" of all operators or
    "linear.scheduled" of one.

    Raises InvalidRequest for values that there are not.
    """

    optimizer: str = "fused_adamw"
    accumulate: int = 1
    recompute: bool = True
    cuda_graphs: bool = False
    replayed: bool = False
    parameter_dtype: str | None = None
    margin: float = 0.05
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise InvalidRequest(
                f"Unknown optimizer {shorten(self.optimizer)}. {suggest(self.optimizer, OPTIMIZERS)}"
            )
        if self.parameter_dtype is not None and self.parameter_dtype not in ELEMENT_BYTES:
            raise InvalidRequest(
                f"parameter_dtype={shorten(self.parameter_dtype)}: expected one of "
                f"{', '.join(ELEMENT_BYTES)}."
            )
        if type(self.margin) is not float or not 0 <= self.margin < 1:
            raise InvalidRequest(f"margin={shorten(self.margin)}: expected a share from 0.0, below 1.")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InvalidRequest(f"accumulate={shorten(self.accumulate)}: expected a whole number from 1.")
        if isinstance(self.exclude, str):
            raise InvalidRequest(f"exclude={shorten(self.exclude)}: expected a tuple of names.")
        known = _implementations() if self.exclude else set()
        for name in self.exclude:
            if name not in known:
                raise InvalidRequest(f"exclude={shorten(name)}: no implementation. {suggest(name, known)}")

    def excludes(self, operator: str, name: str) -> bool:
        """Whether an implementation is not wanted, or is another where steps are captured."""
        whole = f"{operator}.{name}"
        captured = self.cuda_graphs or self.replayed
        return name in self.exclude or whole in self.exclude or (captured and whole in AS_FUSED_IN_GRAPHS)

    def parameter_bytes(self, model: Model) -> int:
        """All weights, as they are stored."""
        return model.parameters * ELEMENT_BYTES[self.parameter_dtype or model.dtype]

    def copy_bytes(self, model: Model) -> int:
        """The weights once more, in the dtype of the computation where that is another."""
        other = self.parameter_dtype not in (None, model.dtype)
        return model.parameters * model.element_bytes if other else 0

    def state_bytes(self, model: Model) -> int:
        """Bytes of the optimizer's state."""
        return OPTIMIZERS[self.optimizer].state * self.parameter_bytes(model)

    def temporary_bytes(self, model: Model) -> int:
        """Bytes that the optimizer takes while it works."""
        return OPTIMIZERS[self.optimizer].temporary * self.parameter_bytes(model)

    def optimizer_ms(self, model: Model, device: Device) -> float:
        """Milliseconds of its step, at the device's copy bandwidth; 0 where that is not known."""
        moved = OPTIMIZERS[self.optimizer].passes * self.parameter_bytes(model)
        return moved / device.copy_bytes_per_s * 1e3 if device.copy_bytes_per_s else 0.0
