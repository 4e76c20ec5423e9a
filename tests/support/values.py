"""Values of every kind of column, for property tests of the index."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from limpet.index.values import INTEGER_END, Kind

__all__ = ["VALUES", "hard_texts", "plain_json", "times"]

_zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
times = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=_zones)
"""Aware, and of a year from 1 to 9999 in UTC too."""

_leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
plain_json = st.recursive(
    _leaves | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=6
)

hard_texts = st.text(alphabet=st.sampled_from("a\\Nnx1\x1f\x1e\n\r\x1b\x00\x7f\x85\u2028\U0001f41a \"'")) | st.text()
"""Strings, and those that would break lines if they were not escaped more often than by chance."""

VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    "string": hard_texts,
    "integer": st.integers(-INTEGER_END, INTEGER_END - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "date": st.dates(),
    "datetime": times,
    "object": st.dictionaries(st.text(), plain_json),
    "array": st.lists(plain_json),
    "any": plain_json.filter(lambda value: value is not None),
}
