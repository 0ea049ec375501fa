"""Constructor signatures of classes that pass most arguments on to a torch.nn class."""

from __future__ import annotations

import inspect
from inspect import Parameter, Signature
from typing import Any

from torch import nn

PASSED_ON = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Signed:
    """Descriptor of `__signature__`: a class's own constructor arguments and those of its torch.nn class.

    `torch.nn.utils.skip_init`, for one, looks there for `device`. An instance has none, or its calls would
    seem to take these.
    """

    def __get__(self, instance: object, owner: type) -> Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return _signature(owner)


def _signature(kind: type) -> Signature:
    found: dict[str, Parameter] = {}
    passed_on: list[Parameter] = []
    for one in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        constructor: Any = vars(one).get("__init__")
        if constructor is None:
            continue
        _, *given = inspect.signature(constructor).parameters.values()
        passed_on = [parameter for parameter in given if parameter.kind in PASSED_ON]
        for parameter in given:
            if parameter not in passed_on:
                found.setdefault(parameter.name, parameter)
        if not passed_on or one.__module__.startswith("torch."):
            break
    else:
        passed_on = []  # to nn.Module, which takes none
    return Signature(sorted((*found.values(), *passed_on), key=lambda one: one.kind))
