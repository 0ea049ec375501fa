"""Lines that are read together share what they have in common, and only that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernel_selector.kernels.contract import CorruptRecord, Record, RecordReader
from kernel_selector.service.openapi.example_record import LINE


def changed(part: str, **values: Any) -> str:
    data = json.loads(LINE)
    return json.dumps({**data, part: {**data[part], **values}})


def test_equal_parts_are_one_object():
    reader = RecordReader()
    first, second = reader.read(LINE), reader.read(changed("gate", worst_error_ratio=0.5))
    assert first == Record.from_json(LINE)
    assert second != first
    for name in ("problem", "device", "environment"):
        assert getattr(first, name) is getattr(second, name)


@pytest.mark.parametrize("layers", [1.0, True])
def test_a_value_of_another_type_is_another_problem(layers):
    reader = RecordReader()
    first, second = reader.read(LINE), reader.read(changed("problem", layers=layers))
    assert first.problem["layers"] == second.problem["layers"]
    assert type(second.problem["layers"]) is type(layers)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("environment", "threads", 16.0), ("device", "multiprocessors", 132.0), ("device", "l2_bytes", False)],
)
def test_what_was_right_before_does_not_make_it_right(part, name, value):
    reader = RecordReader()
    reader.read(LINE)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=name):
            reader.read(changed(part, **{name: value}))


def test_a_part_of_one_kind_is_not_taken_for_another():
    reader, data = RecordReader(), json.loads(LINE)
    reader.read(LINE)
    for part, other in (("device", "environment"), ("environment", "problem"), ("problem", "device")):
        with pytest.raises(CorruptRecord):
            reader.read(json.dumps({**data, part: data[other]}))


@pytest.mark.parametrize("padded", ["NVIDIA  H200", " NVIDIA H200 ", "NVIDIA\tH200\n", "NVIDIA\u00a0H200"])
def test_white_space_in_the_name_of_a_device_is_one_space_or_none(padded):
    reader = RecordReader()
    assert reader.read(changed("device", name=padded)) == reader.read(changed("device", name="NVIDIA H200"))
