"""Recurrent models with several kinds of layers: translation with attention, and speech recognition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .model import ELEMENT_BYTES, Model, Part, Workload, problem_of
from .transformers import IDS_BYTES, loss_part

GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # of which each has weights for the input and for the state


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Encoder and decoder of LSTM layers with additive attention over the encoder's outputs.

    The decoder's outputs attend all at once; context and output go through a linear layer and tanh, and
    a linear loss head predicts the target. Source and target have `seq` words each.
    """

    hidden: int
    layers: int
    vocabulary: int
    seq: int
    dtype: str = "bfloat16"

    def model(self, name: str) -> Model:
        """Planning model under a name."""
        hidden, vocabulary = self.hidden, self.vocabulary
        stacks = 2 * self.layers * (8 * hidden**2 + 8 * hidden)
        attention = 2 * hidden**2 + 2 * hidden
        return Model(
            name=name,
            parameters=3 * vocabulary * hidden + vocabulary + stacks + attention + 2 * hidden**2 + hidden,
            dtype=self.dtype,
            blocks=0,
            workload=self.workload,
        )

    def workload(self, batch: int) -> Workload:
        """Training step of `batch` sentence pairs."""
        element, tokens, hidden = ELEMENT_BYTES[self.dtype], batch * self.seq, self.hidden
        rows = tokens * hidden * element
        stack = {"hidden": hidden, "batch": batch, "seq": self.seq, "layers": self.layers}
        attention = {"hidden": hidden, "batch": batch, "source": self.seq, "target": self.seq}
        joined = {"rows": tokens, "in_features": 2 * hidden, "out_features": hidden}
        return Workload(
            parts=(
                self._part("encoder and decoder", "lstm", stack, 2, rows),
                self._part("attention", "additive_attention", attention, 1, rows),
                self._part("attention output", "linear", joined, 1, rows, output_kept=False),
                loss_part(self.dtype, tokens, hidden, self.vocabulary),
            ),
            # two embeddings, context and output side by side, tanh's result, and ids
            kept_bytes=2 * rows + 2 * rows + rows + 3 * tokens * IDS_BYTES,
            head_gradient_bytes=self.vocabulary * hidden * element,
            other_bytes=20.0 * rows,
        )

    def _part(
        self,
        name: str,
        operator: str,
        sizes: Mapping[str, object],
        count: int,
        output_bytes: int,
        output_kept: bool = True,
    ) -> Part:
        return Part(
            name=name,
            problem=problem_of(operator, self.dtype, sizes),
            count=count,
            output_bytes=output_bytes,
            output_kept=output_kept,
        )


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Speech recognizer: convolutions over spectrograms, bidirectional recurrent layers with summed
    directions, and a linear layer over letters.

    `seq` counts time steps behind the convolutions, which make `features` a step of `channels` maps.
    """

    hidden: int
    layers: int
    seq: int
    channels: int = 32
    bins: int = 161
    features: int = 1312
    letters: int = 29
    operator: str = "rnn"
    dtype: str = "bfloat16"

    def model(self, name: str) -> Model:
        """Planning model under a name."""
        gates = GATES[self.operator]
        first = 2 * gates * self.hidden * (self.features + self.hidden + 2)
        rest = (self.layers - 1) * 2 * gates * self.hidden * (2 * self.hidden + 2)
        convolutions = self.channels * 11 * 41 + self.channels**2 * 11 * 21
        return Model(
            name=name,
            parameters=first + rest + convolutions + self.letters * (self.hidden + 1),
            dtype=self.dtype,
            blocks=0,
            workload=self.workload,
        )

    def workload(self, batch: int) -> Workload:
        """Training step of `batch` utterances."""
        element, frames = ELEMENT_BYTES[self.dtype], batch * self.seq
        rows = frames * self.hidden * element
        sizes: dict[str, object] = {"hidden": self.hidden, "batch": batch, "seq": self.seq}
        sizes |= {"bidirectional": True} | ({"nonlinearity": "relu"} if self.operator == "rnn" else {})
        # the first convolution halves the bins and the time, the second the bins: maps before and after
        # their norms and rectifiers
        maps = 2 * frames * self.features * element * (2 + 1)
        flops = 6.0 * frames * self.features * 11 * (41 * 2 + 21 * self.channels)

        def layers(name: str, features: int, count: int) -> Part:
            problem = problem_of(self.operator, self.dtype, {**sizes, "input": features})
            return Part(name=name, problem=problem, count=count, output_bytes=2 * rows, output_kept=False)

        return Workload(
            parts=(
                layers("first recurrent layer", self.features, 1),
                layers("recurrent layers", self.hidden, self.layers - 1),
            ),
            # each layer's sum of directions is the next one's input
            kept_bytes=maps + 2 * frames * self.bins * element + self.layers * rows,
            other_flops=flops,
            other_bytes=8.0 * maps + 6.0 * self.layers * rows,
        )
