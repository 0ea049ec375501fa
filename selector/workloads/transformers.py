"""Planning models of transformer encoders and decoders, and of recurrent language models, from their
sizes.

Dimensions: B batch, S seq, N = B S tokens, H hidden, F inner, V vocabulary, L layers, e bytes an element.
What is kept is counted once, with the layer that makes it, as `parts.Part` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .model import ELEMENT_BYTES, Model, Part, Workload, problem_of

IDS_BYTES = 8  # int64


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Stack of equal transformer layers between embeddings and a tied linear loss head.

    `prenorm` and `causal` as in GPT-2, neither as in BERT, whose head has a dense layer, GELU and norm of
    its own (`transform`). `labelled` is the share of tokens with a label. Query, key and value are planned as
    one product, also where they are published as three layers (`separate`).
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    seq: int
    positions: int
    inner: int = 0
    dropout: float = 0.1
    activation: str = "gelu"
    prenorm: bool = False
    causal: bool = False
    transform: bool = False
    separate: bool = False
    labelled: float = 1.0
    dtype: str = "bfloat16"

    @property
    def width(self) -> int:
        """Inner features F of the feed-forward block: 4 H by default."""
        return self.inner or 4 * self.hidden

    @property
    def parameters(self) -> int:
        """Number of parameters: layers, tied embeddings, norms and head."""
        hidden = self.hidden
        layer = 4 * (hidden + 1) * hidden + 2 * hidden * self.width + self.width + hidden + 4 * hidden
        head = (hidden + 1) * hidden + 2 * hidden + self.vocabulary if self.transform else 0
        return self.layers * layer + (self.vocabulary + self.positions) * hidden + 2 * hidden + head

    def model(self, name: str) -> Model:
        """Planning model under a name."""
        return Model(
            name=name,
            parameters=self.parameters,
            dtype=self.dtype,
            blocks=self.layers,
            workload=self.workload,
        )

    def workload(self, batch: int) -> Workload:
        """Training step of `batch` sequences."""
        element, tokens = ELEMENT_BYTES[self.dtype], batch * self.seq
        rows = tokens * self.hidden * element
        return Workload(
            parts=(*self._layer(batch, rows), *self._head(batch, rows)),
            # the embeddings' sum for its norm or as residual, what follows it, a mask of bytes, and ids
            kept_bytes=2 * rows + tokens * self.hidden * (self.dropout > 0) + 2 * tokens * IDS_BYTES,
            block_bytes=rows,
            head_gradient_bytes=self.vocabulary * self.hidden * element,
            other_bytes=(12.0 + self.layers * self._joints) * rows,
        )

    @property
    def _joints(self) -> int:
        """Arrays [N, H] read or written between the parts of a layer.

        The gradients of query, key and value are laid side by side; and where an input goes into a part and
        around it, its two gradients are summed up: with `prenorm` a norm's backward does that.
        """
        side_by_side, summed = 3 + 3, 2 + 1
        return side_by_side + (0 if self.prenorm else 2 * summed)

    def _layer(self, batch: int, rows: int) -> tuple[Part, ...]:
        hidden, tokens = self.hidden, batch * self.seq
        attention = {"batch": batch, "heads": self.heads, "seq": self.seq, "head_dim": hidden // self.heads}
        norm = {"rows": tokens, "hidden": hidden, "dropout": self.dropout, "prenorm": self.prenorm}
        block = {"rows": tokens, "hidden": hidden, "inner": self.width, "activation": self.activation}
        square = {"rows": tokens, "in_features": hidden, "out_features": hidden}
        return (
            self._part("query, key, value", "linear", {**square, "out_features": 3 * hidden}, 1, 3 * rows),
            self._part(
                "attention",
                "attention",
                {**attention, "causal": self.causal, "dropout": self.dropout},
                1,
                rows,
            ),
            self._part("attention output", "linear", square, 1, rows, output_kept=False),
            self._part("dropout, add, norm", "dropout_add_norm", norm, 2, rows * (1 + self.prenorm)),
            self._part("feed-forward", "feed_forward", block, 1, rows, output_kept=False),
        )

    def _head(self, batch: int, rows: int) -> tuple[Part, ...]:
        tokens = batch * self.seq
        square = {"rows": tokens, "in_features": self.hidden, "out_features": self.hidden}
        loss = {
            "rows": tokens,
            "hidden": self.hidden,
            "vocabulary": self.vocabulary,
            "labelled": self.labelled,
            "bias": self.transform,
        }
        norm = {"rows": tokens, "hidden": self.hidden}
        before: tuple[Part, ...] = ()
        if self.transform:
            gelu = {"elements": tokens * self.hidden}
            before = (
                self._single("head's dense layer", "linear", square, rows),
                self._single("head's GELU", "gelu", gelu, rows),
                self._single("head's norm", "layer_norm", norm, rows),
            )
        head = problem_of("linear_cross_entropy", self.dtype, loss)
        return (*before, Part(name="loss", problem=head, count=1, output_bytes=0, head=True))

    def _part(
        self,
        name: str,
        operator: str,
        sizes: Mapping[str, object],
        each: int,
        output_bytes: int,
        output_kept: bool = True,
    ) -> Part:
        return Part(
            name=name,
            problem=problem_of(operator, self.dtype, sizes),
            count=each * self.layers,
            per_block=each,
            output_bytes=output_bytes,
            output_kept=output_kept,
        )

    def _single(self, name: str, operator: str, sizes: Mapping[str, object], output_bytes: int) -> Part:
        found = problem_of(operator, self.dtype, sizes)
        return Part(name=name, problem=found, count=1, output_bytes=output_bytes)


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """Recurrent language model: embeddings, stacked LSTM layers, and a linear loss head with weights of
    its own or tied ones.
    """

    hidden: int
    layers: int
    vocabulary: int
    seq: int
    dropout: float = 0.0
    tied: bool = False
    dtype: str = "bfloat16"

    def model(self, name: str) -> Model:
        """Planning model under a name."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        stack = self.layers * (8 * self.hidden**2 + 8 * self.hidden)
        return Model(
            name=name,
            parameters=embeddings + stack + self.vocabulary,
            dtype=self.dtype,
            blocks=0,
            workload=self.workload,
        )

    def workload(self, batch: int) -> Workload:
        """Training step of `batch` sequences."""
        element, tokens = ELEMENT_BYTES[self.dtype], batch * self.seq
        rows = tokens * self.hidden * element
        stack = {
            "hidden": self.hidden,
            "batch": batch,
            "seq": self.seq,
            "layers": self.layers,
            "dropout": self.dropout if self.layers > 1 else 0.0,
        }
        return Workload(
            parts=(
                Part(
                    name="recurrent",
                    problem=problem_of("lstm", self.dtype, stack),
                    count=1,
                    output_bytes=rows,
                ),
                loss_part(self.dtype, tokens, self.hidden, self.vocabulary),
            ),
            # what goes into the stack and, dropped, into the head; two masks of bytes; ids
            kept_bytes=rows + (rows + 2 * tokens * self.hidden) * (self.dropout > 0) + 2 * tokens * IDS_BYTES,
            head_gradient_bytes=self.vocabulary * self.hidden * element,
            other_bytes=6.0 * rows,
        )


def loss_part(dtype: str, rows: int, hidden: int, vocabulary: int) -> Part:
    """Linear layer with bias and its cross-entropy, at the end of a model."""
    sizes = {"rows": rows, "hidden": hidden, "vocabulary": vocabulary, "bias": True}
    return Part(
        name="loss",
        problem=problem_of("linear_cross_entropy", dtype, sizes),
        count=1,
        output_bytes=0,
        head=True,
    )
