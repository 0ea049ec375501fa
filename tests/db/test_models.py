"""Cost models come back exactly, the last one first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kernel_selector.db import InvalidModel, StoredModel, models

MODEL = StoredModel(
    operator="lstm",
    version="1a2b",
    schema=3,
    manifest={"features": ["log_flops"], "trees": 2, "range": {"hidden": [8, 512]}, "scale": 0.1},
    evaluation={"geometric_mean_slowdown": 1.02, "baselines": None},
    arrays=bytes(range(256)) * 1000,
    created_at=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
)


def test_the_latest_model_of_an_operator(database):
    newer = replace(MODEL, version="3c", created_at=datetime(2025, 1, 1, tzinfo=UTC))
    with database.write() as connection:
        assert models.latest(connection, operator="lstm") is None
        for model in (MODEL, newer, replace(MODEL, operator="gru")):
            models.add(connection, model=model)
    with database.read() as connection:
        assert models.latest(connection, operator="lstm") == newer
        assert models.latest(connection, operator="gru") == replace(MODEL, operator="gru")
        assert [(row["operator"], row["version"]) for row in models.listing(connection)] == [
            ("gru", "1a2b"),
            ("lstm", "3c"),
            ("lstm", "1a2b"),
        ]
        assert models.listing(connection)[0] == {
            "operator": "gru",
            "version": "1a2b",
            "schema": 3,
            "created_at": MODEL.created_at,
            "evaluation": MODEL.evaluation,
            "arrays_bytes": 256_000,
        }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"manifest": {"scale": float("nan")}}, "manifest.*'1a2b'"),
        ({"evaluation": {"model": object()}}, "evaluation.*object"),
        ({"created_at": datetime(2026, 1, 1)}, "time zone"),
    ],
)
def test_a_model_that_cannot_be_stored_cannot_be_made(change, named):
    with pytest.raises(InvalidModel, match=named):
        replace(MODEL, **change)
