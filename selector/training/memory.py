"""The model of peak bytes: sums of tensors where they explain the measurements, else a CostModel."""

from __future__ import annotations

from typing import Self

import numpy as np

from ..cost_model.features.imported_spec import ImportedSpec
from ..cost_model.features.spec import FeatureSpec
from ..cost_model.tensor_sums import Floats
from .estimator import CostModel
from .sum_fit import fit_sums


class MemoryModel:
    """Predicts peak bytes from rows of features.

    `rest` is fitted to all rows. It answers for implementations whose bytes no sum explains, and for those
    that have too few rows to tell; for imported operators it answers alone. Fitted are `sums_` and `rest`.
    """

    def __init__(self, spec: FeatureSpec | ImportedSpec, rest: CostModel) -> None:
        self.spec = spec
        self.rest = rest

    def fit(self, rows: Floats, peak_bytes: Floats) -> Self:
        """Fit to rows [n, columns] and positive bytes [n]."""
        self.sums_ = fit_sums(self.spec, rows, peak_bytes) if isinstance(self.spec, FeatureSpec) else None
        self.rest.fit(rows, peak_bytes)
        return self

    def predict(self, rows: Floats) -> Floats:
        """The predicted bytes, shape [n]."""
        if self.sums_ is None:
            return self.rest.predict(rows)
        sums = self.sums_.predict(rows)
        return np.where(sums > 0, sums, self.rest.predict(rows))
