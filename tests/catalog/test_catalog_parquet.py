"""Snapshots as Parquet: the same state back, equal bytes for equal states, and Corrupt for everything else."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.catalog.records import RememberedAnswer
from limpet.catalog.state import CatalogState, time_text
from limpet.catalog.storage import ParquetSnapshots
from limpet.events.parquet import arrow, write_table
from limpet.kernel.errors import Corrupt
from support.clock import steady

CODEC = ParquetSnapshots()
pa = arrow()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2499, 1, 1), timezones=st.just(UTC)).map(time_text)
states = st.builds(
    CatalogState,
    st.dictionaries(texts, plain, max_size=6),
    st.dictionaries(texts, st.builds(RememberedAnswer, texts, moments, st.none() | plain), max_size=6),
)


@steady
@given(states)
def test_a_state_comes_back_the_same(state: CatalogState) -> None:
    back = CODEC.from_bytes(CODEC.to_bytes(state), what="it")
    assert back.entries() == state.entries()
    assert back.answers() == state.answers()
    assert [*back.under("a")] == [*state.under("a")]


@steady
@given(states)
def test_equal_states_give_equal_bytes(state: CatalogState) -> None:
    turned = CatalogState(
        dict(reversed([(key, _turned(value)) for key, value in state.entries().items()])),
        dict(reversed([*state.answers().items()])),
    )
    assert CODEC.to_bytes(turned) == CODEC.to_bytes(state)


def _turned(value: Any) -> Any:
    return dict(reversed(value.items())) if isinstance(value, dict) else value


def test_any_engine_can_read_it(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "it.parquet").write_bytes(
        CODEC.to_bytes(CatalogState({"t": {"n": 1}}, {"i": RememberedAnswer("create", "now")}))
    )
    assert duckdb.sql(f"select * from '{tmp_path}/it.parquet'").fetchall() == [
        ("entry", "t", '{"n":1}'),
        ("answers", "", '{"i":["create","now",null]}'),
    ]


@settings(steady, max_examples=100)
@given(st.data())
def test_damage_is_corrupt_or_harmless(data: st.DataObject) -> None:
    """Digests find damage before this code sees it; without them it must not crash either."""
    state = CatalogState({"a": {"n": 1}, "b": [1, 2]}, {"i": RememberedAnswer("create", "now", {"x": 1})})
    good = CODEC.to_bytes(state)
    at = data.draw(st.integers(0, len(good) - 1))
    cut = data.draw(st.booleans())
    bad = good[:at] if cut else good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    try:
        CODEC.from_bytes(bad, what="it")
    except Corrupt as error:
        said = str(error)
    else:
        return
    assert said.startswith("it ")
    assert "\n" not in said


COLUMNS = ("kind", "key", "value")
TOLD = ("answers", "", "{}")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("entry", "a", "1"), ("entry", "a", "2"), TOLD], "twice"),
        ([("entry", "b", "1"), ("entry", "a", "2"), TOLD], "out of order"),
        ([TOLD, ("entry", "a", "2")], "another kind"),
        ([("other", "a", "1"), TOLD], "another kind"),
        ([("entry", "a", "1")], "another kind"),
        ([TOLD, TOLD], "another kind"),
        ([("entry", "a", "{"), TOLD], "an invalid value"),
        ([("entry", "a", "null"), TOLD], "without a value"),
        ([("entry", None, "1"), TOLD], "lacks"),
        ([("entry", "a", None), TOLD], "lacks"),
        ([("answers", "", '{"i":["create"]}')], "an invalid value"),
    ],
)
def test_a_sound_file_with_other_rows_is_corrupt(rows: list[tuple[Any, ...]], reason: str) -> None:
    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    columns = [[*column] for column in zip(*rows, strict=True)]
    with pytest.raises(Corrupt, match=reason):
        CODEC.from_bytes(write_table(pa.table(columns, schema=schema)), what="it")


def test_other_columns_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="other columns"):
        CODEC.from_bytes(write_table(pa.table({"kind": ["entry"]})), what="it")


def test_without_pyarrow_the_hint_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from limpet.catalog.storage import ParquetSnapshots\n"
        "from limpet.catalog.state import CatalogState\n"
        "from limpet.kernel.errors import Unsupported\n"
        "try: ParquetSnapshots().to_bytes(CatalogState())\n"
        "except Unsupported as error: print(error.hint)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "pip install 'limpet[catalog]'\n"
