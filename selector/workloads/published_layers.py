"""Layers of published models, at the sizes and batches of their papers and training recipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Transformer:
    """Sizes of a transformer and of one of its batches; heads have 64 features each."""

    batch: int
    seq: int
    hidden: int
    vocabulary: int
    decoder: bool  # causal, and its loss is over every position; else masked words of padded sentences

    @property
    def rows(self) -> int:
        """Tokens of a batch."""
        return self.batch * self.seq


TRANSFORMERS = (
    Transformer(32, 128, 768, 30522, decoder=False),  # BERT base, first phase
    Transformer(8, 512, 768, 30522, decoder=False),  # BERT base, second phase
    Transformer(32, 128, 1024, 30522, decoder=False),  # BERT large
    Transformer(8, 512, 1024, 30522, decoder=False),
    Transformer(16, 512, 768, 50265, decoder=False),  # RoBERTa base
    Transformer(16, 512, 1024, 50265, decoder=False),  # RoBERTa large
    Transformer(8, 1024, 768, 50257, decoder=True),  # GPT-2 small
    Transformer(8, 1024, 1024, 50257, decoder=True),  # GPT-2 medium
    Transformer(4, 1024, 1280, 50257, decoder=True),  # GPT-2 large
    Transformer(4, 1024, 1600, 50257, decoder=True),  # GPT-2 XL
)


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder with grouped keys and values, RMS norms and no biases, and of one of its batches."""

    batch: int
    seq: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int


DECODERS = (
    Decoder(4, 2048, 896, 14, 2, 64, 4864, 151936),  # Qwen 2.5, 0.5 B
    Decoder(4, 2048, 2048, 32, 8, 64, 8192, 128256),  # Llama 3.2, 1 B
    Decoder(2, 2048, 2304, 8, 4, 256, 9216, 256000),  # Gemma 2, 2 B
    Decoder(1, 4096, 4096, 32, 32, 128, 11008, 32000),  # Llama 2, 7 B
    Decoder(1, 4096, 4096, 32, 8, 128, 14336, 128256),  # Llama 3, 8 B
)
RANKS = (8, 16, 64)  # of low-rank adapters (LoRA, Hu et al. 2021) on these decoders


@dataclass(frozen=True)
class Encoder:
    """Sizes of an encoder of images or sounds, prenorm and without masks, and of one of its batches."""

    batch: int
    seq: int
    hidden: int


ENCODERS = (
    Encoder(64, 197, 384),  # ViT-S/16
    Encoder(64, 197, 768),  # ViT-B/16
    Encoder(32, 197, 1024),  # ViT-L/16
    Encoder(8, 1500, 512),  # Whisper base
    Encoder(8, 1500, 768),  # Whisper small
)

# recurrent layers as forecasting, tagging and classification are written with them
USUAL: tuple[Values, ...] = (
    {"hidden": 50, "input": 1, "batch": 32, "seq": 60},
    {"hidden": 64, "input": 8, "batch": 64, "seq": 24, "layers": 2, "dropout": 0.2},
    {"hidden": 128, "input": 20, "batch": 128, "seq": 96, "layers": 2, "dropout": 0.2},
    {"hidden": 128, "input": 300, "batch": 64, "seq": 100, "bidirectional": True},
    {"hidden": 256, "input": 300, "batch": 64, "seq": 128, "layers": 2, "dropout": 0.5},
    {"hidden": 256, "input": 200, "batch": 32, "seq": 64, "layers": 2, "bidirectional": True},
    {"hidden": 256, "input": 100, "batch": 32, "seq": 50, "bidirectional": True, "packed": True},
    {"hidden": 512, "batch": 64, "seq": 50, "layers": 2, "dropout": 0.3},
    {"hidden": 512, "input": 80, "batch": 16, "seq": 400, "layers": 3, "bidirectional": True, "packed": True},
    {"hidden": 1024, "batch": 64, "seq": 50, "layers": 2, "dropout": 0.2},
)
# recurrent layers, of which each model has one or more
RECURRENT: Mapping[str, tuple[Values, ...]] = {
    "lstm": (
        # language models: Zaremba et al. 2014, small to large; Merity et al. 2017; Jozefowicz et al. 2016
        {"hidden": 200, "batch": 20, "seq": 20, "layers": 2},
        {"hidden": 650, "batch": 20, "seq": 35, "layers": 2},
        {"hidden": 1500, "batch": 20, "seq": 35, "layers": 2},
        {"hidden": 1150, "input": 400, "batch": 80, "seq": 70},
        {"hidden": 1150, "batch": 80, "seq": 70},
        {"hidden": 400, "input": 1150, "batch": 80, "seq": 70},
        {"hidden": 2048, "projection": 512, "input": 512, "batch": 128, "seq": 20},
        # translation: Luong et al. 2015; OpenNMT's default; Wu et al. 2016, its encoder's first layer beside
        {"hidden": 1000, "batch": 128, "seq": 50, "layers": 4},
        {"hidden": 500, "batch": 64, "seq": 50, "layers": 2},
        {"hidden": 1024, "batch": 128, "seq": 50},
        {"hidden": 1024, "batch": 128, "seq": 50, "bidirectional": True},
        {"hidden": 1024, "input": 2048, "batch": 128, "seq": 50},
        # DeepBench: machine translation, language modelling, character models
        *({"hidden": hidden, "batch": 64, "seq": 25} for hidden in (512, 1024, 2048, 4096)),
        *({"hidden": 1536, "batch": batch, "seq": 50} for batch in (8, 16, 32)),
        *({"hidden": 256, "batch": batch, "seq": 150} for batch in (16, 32, 64)),
    ),
    "gru": (
        # translation: Bahdanau et al. 2015, encoder and decoder
        {"hidden": 1000, "input": 620, "batch": 80, "seq": 30, "bidirectional": True},
        {"hidden": 1000, "input": 2000, "batch": 80, "seq": 30},
        # speech: Deep Speech 2's recurrent layers of 1280; DeepBench's of 1024 to 2816
        {"hidden": 1280, "batch": 32, "seq": 150},
        {"hidden": 1280, "batch": 32, "seq": 150, "bidirectional": True},
        *({"hidden": hidden, "batch": 32, "seq": 187} for hidden in (1536, 2048, 2560, 2816)),
        {"hidden": 2560, "batch": 32, "seq": 375},
        {"hidden": 1024, "batch": 64, "seq": 1500},
        {"hidden": 512, "batch": 32, "seq": 1},
    ),
    "rnn": (
        # speech: Deep Speech 2 and DeepBench, rectifiers of 1760 to 2560; a tanh layer of each width beside
        *(
            {"hidden": hidden, "batch": batch, "seq": 50, "nonlinearity": "relu"}
            for hidden, batch in product((1760, 2048, 2560), (16, 32, 64, 128))
        ),
        {"hidden": 1760, "batch": 32, "seq": 50, "bidirectional": True, "nonlinearity": "relu"},
        *({"hidden": hidden, "batch": 32, "seq": 50} for hidden in (1760, 2048, 2560)),
        # language models: Mikolov et al. 2010
        {"hidden": 200, "batch": 10, "seq": 20},
    ),
}
# attention of recurrent translation models: Bahdanau, Luong's two scores, Wu's over a decoder of 1024
ADDITIVE: tuple[Values, ...] = (
    {"hidden": 1000, "batch": 80, "source": 30},
    {"hidden": 1000, "batch": 80, "source": 30, "target": 1},
    {"hidden": 1000, "batch": 128, "source": 50, "score": "general"},
    {"hidden": 1000, "batch": 128, "source": 50, "score": "dot"},
    {"hidden": 1024, "batch": 128, "source": 50, "lengths": True},
    {"hidden": 1024, "batch": 128, "source": 50, "target": 1, "lengths": True},
    {"hidden": 512, "batch": 128, "source": 100, "lengths": True},
)
# a training set's dtypes; and what one who only runs the model asks for
TRAINED = ({"dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": "float32"})
SERVED = {"dtype": "bfloat16", "mode": "inference"}


def published_problems(operator: str) -> list[Problem]:
    """Problems of an operator in published models, for training in three dtypes and for inference; maybe
    none.
    """
    known = registry.operator(operator)
    problems = (
        known.problem({**given, **circumstances})
        for given in _layers(operator)
        for circumstances in (*TRAINED, SERVED, *_alone(given))
        if circumstances["dtype"] == given.get("dtype", circumstances["dtype"])
    )
    return list(dict.fromkeys(problems))


def _alone(given: Values) -> Iterator[Values]:
    """Hyperparameters at batch size 1, for operators with a batch."""
    if given.get("batch", 1) > 1:
        yield {**SERVED, "batch": 1}


def _layers(operator: str) -> Iterable[Values]:
    if operator in RECURRENT:
        return chain(RECURRENT[operator], ({**given, "batch_first": True} for given in USUAL))
    if operator == "additive_attention":
        return ADDITIVE
    models = chain(map(_of, TRANSFORMERS), map(_of_decoder, DECODERS), map(_of_encoder, ENCODERS))
    return chain.from_iterable(layers.get(operator, ()) for layers in models)


def _of(model: Transformer) -> dict[str, list[Values]]:
    """Layers of a transformer by operator, with dropout 0.1 as in these models."""
    rows, hidden, inner = model.rows, model.hidden, 4 * model.hidden
    heads, gelu = hidden // 64, "gelu_tanh" if model.decoder else "gelu"
    seen = {"causal": True} if model.decoder else {"mask": "padding"}
    of_heads = {"batch": model.batch * heads, "rows": model.seq}
    elements = {"elements": rows * inner}
    return {
        "attention": [{"batch": model.batch, "heads": heads, "seq": model.seq, "dropout": 0.1, **seen}],
        "batched_matmul": [
            {**of_heads, "inner": 64, "columns": model.seq, "transposed": True},
            {**of_heads, "inner": model.seq, "columns": 64},
        ],
        "dropout_add_norm": [{"rows": rows, "hidden": hidden, "prenorm": model.decoder}],
        "feed_forward": [{"rows": rows, "hidden": hidden, "activation": gelu, "inner": inner}],
        "gelu": [{**elements, "approximate": "tanh" if model.decoder else "none"}],
        "relu": [elements],
        "silu": [elements],
        "layer_norm": [{"rows": rows, "hidden": hidden}],
        "rms_norm": [{"rows": rows, "hidden": hidden}],
        "linear": _linear_layers(rows, hidden, gelu, dropout=0.1),
        "linear_cross_entropy": [
            {
                "rows": rows,
                "hidden": hidden,
                "vocabulary": model.vocabulary,
                "labelled": 1.0 if model.decoder else 0.15,
            }
        ],
    }


def _of_decoder(model: Decoder) -> dict[str, list[Values]]:
    """Layers of a decoder and of adapters on it by operator, in the dtype that they are trained in."""
    rows, hidden, inner = model.batch * model.seq, model.hidden, model.inner
    inside, shared = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sizes = [(hidden, inside), (hidden, shared), (inside, hidden), (hidden, inner), (inner, hidden)]
    sizes += chain.from_iterable(((hidden, rank), (rank, hidden)) for rank in RANKS)
    heads = {"heads": model.heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    layers: dict[str, list[Values]] = {
        "attention": [{"batch": model.batch, "seq": model.seq, **heads, "causal": True}],
        "rms_norm": [{"rows": rows, "hidden": hidden}],
        "silu": [{"elements": rows * inner}],
        "linear": [
            {"rows": rows, "in_features": features, "out_features": outputs, "bias": False}
            for features, outputs in dict.fromkeys(sizes)
        ],
        "linear_cross_entropy": [{"rows": rows, "hidden": hidden, "vocabulary": model.vocabulary}],
    }
    return {
        operator: [{**given, "dtype": "bfloat16"} for given in found] for operator, found in layers.items()
    }


def _of_encoder(model: Encoder) -> dict[str, list[Values]]:
    """Layers of an encoder of images or sounds by operator."""
    rows, hidden, inner = model.batch * model.seq, model.hidden, 4 * model.hidden
    return {
        "attention": [{"batch": model.batch, "heads": hidden // 64, "seq": model.seq}],
        "dropout_add_norm": [{"rows": rows, "hidden": hidden, "prenorm": True, "dropout": 0.0}],
        "feed_forward": [{"rows": rows, "hidden": hidden, "inner": inner}],
        "gelu": [{"elements": rows * inner}],
        "layer_norm": [{"rows": rows, "hidden": hidden}],
        "linear": _linear_layers(rows, hidden, "gelu", dropout=0.0),
    }


def _linear_layers(rows: int, hidden: int, activation: str, *, dropout: float) -> list[Values]:
    """Products of a block: query, key and value; the attention's output; both of the feed-forward layer."""
    ends = {"out_features": hidden, "residual": True, "dropout": dropout}
    wide = {"rows": rows, "in_features": hidden}
    return [
        {**wide, "out_features": 3 * hidden},
        {**wide, **ends},
        {**wide, "out_features": 4 * hidden, "activation": activation},
        {"rows": rows, "in_features": 4 * hidden, **ends},
    ]
