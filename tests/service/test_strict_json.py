"""Bodies are read as Python's parser reads them, but for what RFC 8259 does not have."""

from __future__ import annotations

import json

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from kernel_selector.service.strict_json import parse

NAMES = ["a", ":", "a:b", r"\u0061", r"\u003a", r"\\", "é"]
scalars = ["0", "-0", "-0.0", "1e5", "1e999", "9" * 30, "true", "null", *(f'"{name}"' for name in NAMES)]


def written(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts of lists and objects of these, in which names come twice."""
    members = st.lists(st.tuples(st.sampled_from(NAMES), parts), max_size=4)
    return st.one_of(
        st.lists(parts, max_size=4).map(lambda found: f"[{' , '.join(found)}]"),
        members.map(lambda found: "{" + ",".join(f'"{name}" : {value}' for name, value in found) + "}"),
    )


@given(st.recursive(st.sampled_from(scalars), written, max_leaves=12))
def test_what_names_everything_once_is_read_as_python_reads_it(text: str) -> None:
    twice = []

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        twice.append(len(dict(found)) < len(found))
        return dict(found)

    expected = json.loads(text, object_pairs_hook=pairs)
    if any(twice):
        with pytest.raises(HTTPException, match="is given twice"):
            parse(text.encode())
    else:
        assert repr(parse(text.encode())) == repr(expected)


@pytest.mark.parametrize(
    "text", [r'{"a": 1, "a": "\u003a"}', '{"a": "::", "a": ":"}', r'{"a": 1, "\u0061": 2}']
)
def test_no_colon_hides_that_a_key_is_given_twice(text: str) -> None:
    with pytest.raises(HTTPException, match="'a' is given twice"):
        parse(text.encode())
