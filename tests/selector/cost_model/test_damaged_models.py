"""Stored models of which some bytes are others: refused, or with finite figures, and in their usual time."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from kernel_selector.db import Database, models
from kernel_selector.kernels import registry
from selector import ModelVersionMismatch
from selector.cost_model import stored_arrays
from selector.cost_model.predictor import Predictor
from tests.selector import replay

LSTM = registry.operator("lstm")
IMPLEMENTATIONS = registry.implementations("lstm")
ASKED = [
    LSTM.problem(hidden=96, batch=24),
    LSTM.problem(hidden=4096, batch=8),
    LSTM.problem(hidden=96, batch=8, dtype="bfloat16", mode="inference", bidirectional=True),
]
LONGEST_S = 5.0  # of one model on a busy machine; as they are they take a hundredth


@pytest.fixture(scope="module")
def stored(trained_file):
    with Database.open(trained_file) as database, database.read() as connection:
        return models.latest(connection, operator="lstm")


@pytest.fixture(scope="module")
def arrays(stored):
    return stored_arrays.unpacked(stored.arrays)


def packed(stored, arrays):
    """The model with other arrays, and the checksum of those."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    data = buffer.getvalue()
    return replace(
        stored, arrays=data, manifest=stored.manifest | {"sha256": hashlib.sha256(data).hexdigest()}
    )


def asked(model):
    """Whether a model is taken; its figures are finite, or it abstains."""
    began = time.perf_counter()
    try:
        predictor = Predictor(model, LSTM)
        tiers = predictor.tiers(
            ASKED,
            [tuple(IMPLEMENTATIONS)] * len(ASKED),
            device=replay.HERE,
            software=None,
            known=IMPLEMENTATIONS,
        )
    except ModelVersionMismatch:
        return False
    finally:
        assert time.perf_counter() - began < LONGEST_S
    for tier in tiers:
        for estimate in tier.estimates.values():
            assert all(math.isfinite(figure) for figure in estimate)
    return True


def flipped(array, draw):
    data = bytearray(array.tobytes())
    for _ in range(draw.choice((1, 1, 3, 20))):
        if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return np.frombuffer(bytes(data), dtype=array.dtype).reshape(array.shape)


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.full)])
def test_flipped_bits_of_arrays(stored, arrays, count):
    draw, taken = random.Random(count), 0
    assert asked(packed(stored, arrays))
    for _ in range(count):
        name = draw.choice(list(arrays))
        taken += asked(packed(stored, arrays | {name: flipped(arrays[name], draw)}))
    assert 0 < taken < count


def test_flipped_bytes_of_the_manifest(stored):
    draw, text = random.Random(5), json.dumps(stored.manifest)
    for _ in range(150):
        data = bytearray(text.encode())
        data[draw.randrange(len(data))] = draw.randrange(32, 127)
        try:
            manifest = json.loads(data)
            asked(replace(stored, manifest=manifest))
        except json.JSONDecodeError:
            continue


def test_wrong_shapes_and_types(stored, arrays):
    for name, array in arrays.items():
        shorter = array[..., None] if name.endswith("_roots") else array.ravel()[:-1]  # fewer trees are trees
        for other in (array[..., None], shorter, array.astype(np.complex64), array.astype("S3")):
            if other.shape != array.shape or other.dtype != array.dtype:
                assert not asked(packed(stored, arrays | {name: other})), name
        assert not asked(packed(stored, {key: one for key, one in arrays.items() if key != name})) or (
            name.startswith("presence")
        )


def test_a_walk_that_never_ends_is_refused(stored, arrays):
    left = arrays["time_trees_left"].copy()
    inner = np.flatnonzero(arrays["time_trees_threshold"] != np.inf)[-1]
    left[inner] = 0
    assert not asked(packed(stored, arrays | {"time_trees_left": left}))
    assert not asked(packed(stored, arrays | {"time_trees_depth": np.array(2**30, np.int32)}))


def test_a_file_that_inflates_beyond_any_model_is_refused_before(monkeypatch):
    monkeypatch.setattr(stored_arrays, "MOST_BYTES", 10_000)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, time_trees_value=np.zeros(10**6))
    with pytest.raises(ValueError, match="more than 10000 bytes"):
        stored_arrays.unpacked(buffer.getvalue())


def test_a_shape_that_is_larger_than_its_bytes_is_refused_before():
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("time_trees_value.npy", header.getvalue() + bytes(800))
    with pytest.raises(ValueError, match=r"time_trees_value\.npy is not as large as its shape"):
        stored_arrays.unpacked(buffer.getvalue())
