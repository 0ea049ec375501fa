"""Where a model's memory and time go: `selector.inspect_model`.

One training step is run a few times on the example inputs: for the peak as it is, then with hooks for what
each module keeps, computes and waits for. Parameters, buffers, gradients and random numbers are afterwards
as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract.errors import shorten

from .errors import InvalidRequest

if TYPE_CHECKING:
    from torch import Tensor, nn

OPTIMIZERS = {"none": None, "sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


@dataclass(frozen=True, kw_only=True)
class ModuleShare:
    """What one module takes by itself, without the modules inside it.

    The last one, "(outside)", is what runs outside of all modules, as a loss function does.
    `feature_map_bytes` are kept from forward to backward, each storage with the module that kept it first.
    Times are of one step; `utilisation` is the share of the device's measured matrix rate, None where the
    module has no operations that are counted or the rate is not known.
    """

    path: str
    kind: str
    weight_bytes: int
    gradient_bytes: int
    feature_map_bytes: int
    forward_ms: float
    backward_ms: float
    flops: int
    utilisation: float | None


@dataclass(frozen=True, kw_only=True)
class ModelInspection:
    """One training step, by memory and by module.

    `workspace_bytes` is what the peak has beyond weights, feature maps, the optimizer's state and the inputs:
    temporaries, and those gradients that are there at the peak. All gradients are `gradient_bytes`.
    """

    model: str
    device: str
    peak_bytes: int
    weight_bytes: int
    gradient_bytes: int
    feature_map_bytes: int
    optimizer_bytes: int
    input_bytes: int
    workspace_bytes: int
    forward_ms: float
    backward_ms: float
    flops: int
    utilisation: float | None
    modules: tuple[ModuleShare, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def table(self, other: ModelInspection | None = None, most: int = 20) -> str:
        """Plain text: totals, and the modules that take most; beside `other`, the model after changes."""
        from .inspect_table import one, side_by_side

        return one(self, most) if other is None else side_by_side(self, other, most)


def inspect_model(
    model: nn.Module,
    example_inputs: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: str = "adamw",
) -> ModelInspection:
    """Run training steps of any torch model on the example inputs, and say where memory and time go.

    `example_inputs` are a tensor, a tuple of positional arguments, or a mapping of keyword arguments. `loss`
    makes a scalar of the model's output; by default a scalar output, or one named `loss`, is taken, else the
    means of all its floating-point tensors are added. `optimizer` is none, sgd, adam or adamw.

    Raises InvalidRequest for another optimizer, for a model without parameters that need gradients or on
    torch's meta device, and for outputs of which no loss can be made; and what the model itself raises.
    """
    from torch import nn

    from .inspect_run import Steps

    if not isinstance(model, nn.Module):
        raise InvalidRequest(f"model={shorten(model)}: expected a torch module.")
    if optimizer not in OPTIMIZERS:
        raise InvalidRequest(f"optimizer={shorten(optimizer)}: expected one of {', '.join(OPTIMIZERS)}.")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidRequest(
            f"{type(model).__name__} has no parameters that need gradients: nothing is trained."
        )
    if any(parameter.is_meta for parameter in trained):
        raise InvalidRequest(
            f"{type(model).__name__} is on the meta device, where nothing runs: give it weights with "
            "model.to_empty(device=...) first."
        )
    return Steps(model, example_inputs, loss, OPTIMIZERS[optimizer]).inspection()
