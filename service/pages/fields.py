"""Inputs of the page's forms."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_selector.kernels.contract import Boolean, Hyperparameter, Integer, Number, OneOf


@dataclass(frozen=True, kw_only=True)
class Field:
    """An input: a selection where there are `choices` (value and text), else one to type into.

    `inputmode` is the keyboard that a phone shows.
    """

    name: str
    label: str
    value: str
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""
    inputmode: str = "text"
    required: bool = False


def of_hyperparameter(spec: Hyperparameter, *, name: str, value: str) -> Field:
    """The input for a hyperparameter; left empty, it has its default."""
    default = "" if spec.default is None else str(spec.default)
    said = f"as {default[1:]}" if default.startswith("=") else default.lower()
    words: tuple[str, ...] = ()
    if isinstance(spec, Boolean):
        words = ("true", "false")
    elif isinstance(spec, OneOf):
        words = spec.choices
    open_choice = () if spec.default is None else (("", f"{said} (default)"),)
    return Field(
        name=name,
        label=spec.name,
        value=value,
        help=f"{spec.help}; {spec.expected}",
        choices=(*open_choice, *((word, word) for word in words)) if words else (),
        placeholder=said,
        inputmode="numeric"
        if isinstance(spec, Integer)
        else "decimal"
        if isinstance(spec, Number)
        else "text",
        required=spec.default is None,
    )
