"""Where a model's memory and time go: `selector.inspect_model`.

One training step is run a few times on the example inputs: for the peak as it is, then with hooks for what
each module keeps, computes and waits for. Parameters, buffers, gradients and random numbers are afterwards
as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract.errors import shorten

from ...errors import InvalidRequest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .report import ModelInspection

OPTIMIZERS = {"none": None, "sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


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

    from .step import Steps

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
