"""Memory and time profile of a model's training step: `selector.inspect_model`.

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
    """Memory and time profile of a model's training step on example inputs, module by module.

    Parameters
    ----------
    model : nn.Module
    example_inputs : Tensor, tuple or mapping
        One tensor, positional arguments, or keyword arguments.
    loss : callable, optional
        Scalar loss of the model's output. Default: a scalar output, or the one named `loss`, else the sum
        of the means of all floating-point tensors.
    optimizer : {"none", "sgd", "adam", "adamw"}

    Returns
    -------
    ModelInspection
        Bytes and milliseconds of one step, in total and by module.

    Raises
    ------
    InvalidRequest
        For another optimizer, for a model without parameters that need gradients or on the meta
        device, and for outputs from which no loss can be made.

    Errors of the model itself pass through.
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
