"""Published models have the sizes that were published, and grow with the batch."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import InvalidHyperparameter
from selector.workloads.published_models import families, published


def test_published_models_have_their_published_sizes() -> None:
    counts = {name: published(name).parameters for name in families()}
    assert counts["gpt2"] == 124_439_808
    assert counts["gpt2-xl"] == 1_557_611_200
    assert counts["bert-large"] == pytest.approx(335e6, rel=0.005)
    assert counts["roberta-large"] == pytest.approx(355e6, rel=0.005)
    for name in families():
        model = published(name)
        small, large = model.workload(1), model.workload(3)
        assert large.kept_bytes == 3 * small.kept_bytes
        for one, other in zip(small.parts, large.parts, strict=True):
            assert other.output_bytes == 3 * one.output_bytes
            assert registry.is_valid(one.problem)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("gpt2", {"dtype": "int8"}, "dtype='int8' of gpt2: expected one of float64, float32"),
        ("nmt", {"dtype": "bf16"}, "dtype='bf16' of nmt"),
        ("deepspeech2", {"operator": "linear"}, "operator='linear' of deepspeech2: expected one of rnn, gru"),
        ("gpt2", {"heads": 5}, "heads=5 of gpt2: expected a divisor of hidden=768"),
    ],
)
def test_sizes_that_no_such_model_has_are_refused(name: str, sizes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidHyperparameter, match=words):
        published(name, **sizes)


def test_a_share_may_be_written_as_a_whole_number() -> None:
    (norm,) = (part for part in published("gpt2", dropout=0).workload(1).parts if "add, norm" in part.name)
    assert norm.problem["dropout"] == 0.0
