"""Published models have the sizes that were published, and grow with the batch."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from selector.plans.published import families, published


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
