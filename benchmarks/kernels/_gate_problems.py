"""The problems that `gate` judges implementations on: sizes for a GPU, a function an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import InvalidHyperparameter, Problem, UnknownHyperparameter

Given = Mapping[str, object]  # what differs from an operator's defaults

DTYPES = ("float32", "float16", "bfloat16")
MODES = ("training", "inference")
# where cuDNN's backward gives NaN, and torch takes cuDNN by itself: in bfloat16, trained
UNSAFE: Given = {"batch": 2, "heads": 4, "seq": 704, "head_dim": 64, "mask": "boolean"}
MASKS = ("none", "boolean", "padding")


def _norms() -> Iterator[Given]:
    for rows, hidden in product((3, 257, 8192), (1, 33, 768, 1000, 4096, 8192)):
        if rows < 8192 or hidden <= 4096:
            yield {"rows": rows, "hidden": hidden}
    yield {"rows": 65537, "hidden": 768}  # more rows than a grid's second axis has
    yield {"rows": 257, "hidden": 16385}
    yield {"rows": 257, "hidden": 1000, "affine": False}


def _dropout_add_norm() -> Iterator[Given]:
    for rows, hidden in ((3, 1), (3, 33), (257, 768), (257, 1000), (8192, 1024), (33, 8192), (65537, 64)):
        for norm, prenorm in product(("layer", "rms"), (False, True)):
            dropout = 0.1 if prenorm == (norm == "rms") else 0.0
            yield {"rows": rows, "hidden": hidden, "norm": norm, "prenorm": prenorm, "dropout": dropout}


def _activation() -> Iterator[Given]:
    for elements in (1, 3, 1023, 1025, 98_304, 1_000_003, 2**24):
        yield {"elements": elements}


def _gelu() -> Iterator[Given]:
    for given, approximate in product(_activation(), ("none", "tanh")):
        yield {**given, "approximate": approximate}


def _feed_forward() -> Iterator[Given]:
    shapes = ((1, 1, 1), (3, 33, 65), (257, 768, 3072), (100, 1000, 1003), (2048, 1024, 4096))
    activations = ("gelu", "gelu_tanh", "relu", "silu")
    for index, ((rows, hidden, inner), activation) in enumerate(product(shapes, activations)):
        dropout = 0.1 if index % 2 else 0.0
        yield {"rows": rows, "hidden": hidden, "inner": inner, "activation": activation, "dropout": dropout}
    yield {"rows": 257, "hidden": 64, "inner": 128, "bias": False}


def _attention() -> Iterator[Given]:
    yield UNSAFE
    shapes = product((1, 63, 128, 577, 704, 1024), (40, 64, 80, 128), MASKS)
    for index, (seq, head_dim, mask) in enumerate(shapes):
        causal = (index + index // 12) % 2 == 1  # with each mask at every other head dimension, and sequence
        shape = {"batch": 2, "heads": 4, "seq": seq, "head_dim": head_dim}
        yield {**shape, "mask": mask, "causal": causal}
    base = {"batch": 2, "heads": 4, "seq": 577, "head_dim": 64}
    more: tuple[Given, ...] = (
        {"head_dim": 256},
        {"head_dim": 1},
        {"head_dim": 33},
        {"kv_heads": 1},
        {"kv_heads": 2, "causal": True},
        {"kv_heads": 2, "mask": "boolean"},
        {"kv_seq": 63},
        {"kv_seq": 704, "causal": True},
        {"seq": 1, "kv_seq": 1024, "mask": "padding"},
        {"bias": True},
        {"bias": True, "causal": True},
        {"bias": True, "mask": "padding"},
        {"return_weights": True},
        {"return_weights": True, "causal": True},
        {"return_weights": True, "mask": "boolean"},
        *({"dropout": 0.1, "mask": mask, "causal": causal} for mask in MASKS for causal in (False, True)),
        {"dropout": 0.1, "bias": True},
        {"dropout": 0.1, "kv_heads": 2},
        {"dropout": 0.1, "return_weights": True},
    )
    yield from ({**base, **given} for given in more)


def _additive_attention() -> Iterator[Given]:
    for batch, target, source, hidden in ((1, 1, 1, 1), (3, 5, 7, 33), (32, 1, 100, 512), (33, 17, 65, 1000)):
        base = {"batch": batch, "target": target, "source": source, "hidden": hidden}
        yield from ({**base, "score": score} for score in ("additive", "general", "dot"))
        yield {**base, "layer_norm": True}
        yield {**base, "lengths": True}
        yield {**base, "lengths": True, "layer_norm": True, "layout": "time_major"}


def _linear_cross_entropy() -> Iterator[Given]:
    shapes = ((1, 1, 1), (3, 33, 65), (257, 768, 1003), (1000, 64, 30522), (2048, 1024, 50257))
    for (rows, hidden, vocabulary), labelled in product(shapes, (1.0, 0.15)):
        base = {"rows": rows, "hidden": hidden, "vocabulary": vocabulary, "labelled": labelled}
        yield base
        yield {**base, "bias": True}


LARGER: Mapping[str, Callable[[], Iterator[Given]]] = {
    "layer_norm": _norms,
    "rms_norm": _norms,
    "dropout_add_norm": _dropout_add_norm,
    "gelu": _gelu,
    "relu": _activation,
    "silu": _activation,
    "feed_forward": _feed_forward,
    "attention": _attention,
    "additive_attention": _additive_attention,
    "linear_cross_entropy": _linear_cross_entropy,
}


class Problems:
    """An operator's problems: its examples, in float64 too, and the larger ones of this file."""

    def __init__(self, name: str, *, larger: bool) -> None:
        operator = registry.operator(name)
        self.examples: dict[Problem, None] = {}
        self.larger: dict[Problem, None] = {}
        self.impossible: list[str] = []
        for example, dtype, mode in product(operator.examples, (*DTYPES, "float64"), MODES):
            self.examples[operator.problem({**example, "dtype": dtype, "mode": mode})] = None
        given = LARGER[name]() if larger and name in LARGER else iter(())
        for values, dtype, mode in product(given, DTYPES, MODES):
            if (dtype, mode) == ("float16", "inference"):
                continue  # its forward pass is judged in training, and its way is bfloat16's
            try:
                problem = operator.problem({**values, "dtype": dtype, "mode": mode})
            except (InvalidHyperparameter, UnknownHyperparameter) as error:
                self.impossible.append(f"{name} {dict(values)}: {error}")
                continue
            if problem not in self.examples:
                self.larger[problem] = None
        self.impossible = list(dict.fromkeys(self.impossible))
