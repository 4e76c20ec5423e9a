"""The tree of errors: what its docstring draws, and what every kind carries."""

from __future__ import annotations

import pickle
import re
import traceback
from datetime import UTC, datetime

import pytest

import limpet
from limpet.kernel import errors
from limpet.kernel.errors import Held, LimpetError

KINDS = [kind for kind in LimpetError.__subclasses__() if kind.__module__ == errors.__name__]
SAY_IT_THEMSELVES = (errors.Invalid, errors.Missing)
"""Kinds without a hint that fits all: the line says what is wrong, and a hint what to do about just that."""
UNTIL = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)


def make(kind: type[LimpetError]) -> LimpetError:
    return Held("backup", by="pi:7", until=UNTIL, token=3) if kind is Held else kind("it broke")


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert sorted(drawn) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_direct_child_with_a_hint_and_exported(kind: type[LimpetError]) -> None:
    assert kind.__bases__ == (LimpetError,)
    assert make(kind).hint == kind.default_hint
    assert bool(kind.default_hint) is (kind not in SAY_IT_THEMSELVES)
    assert getattr(limpet, kind.__name__) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_one_line(kind: type[LimpetError]) -> None:
    assert "\n" not in str(make(kind))


def test_a_hint_of_its_own_replaces_the_default() -> None:
    assert errors.Invalid("no", hint="say yes").hint == "say yes"
    assert errors.Invalid("no", hint="").hint == ""


@pytest.mark.parametrize(
    ("until", "text"),
    [
        (UNTIL, "lock 'backup' is held by pi:7, at least until 12:30:05 UTC (token 3)"),
        (None, "lock 'backup' is held by pi:7 (token 3)"),
    ],
)
def test_held_says_by_whom_and_until_when(until: datetime | None, text: str) -> None:
    held = Held("backup", by="pi:7", until=until, token=3)
    assert str(held) == text
    assert (held.by, held.until, held.token) == ("pi:7", until, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_out_of_a_worker_process(kind: type[LimpetError]) -> None:
    error = make(kind)
    error.hint = "as said"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), back.hint) == (str(error), "as said")
    assert vars(back) == vars(error)


def test_a_traceback_shows_the_hint_once() -> None:
    error = errors.Invalid("it broke", hint="mend it")
    error.add_note("at noon")
    assert traceback.format_exception_only(error) == [
        "limpet.kernel.errors.Invalid: it broke\n",
        "hint: mend it\n",
        "at noon\n",
    ]
    error.hint = "mend it well"
    assert error.__notes__ == ["hint: mend it well", "at noon"]
    error.hint = ""
    assert error.__notes__ == ["at noon"]
    there_and_back = pickle.loads(pickle.dumps(errors.Missing("gone", hint="look")))
    assert (there_and_back.hint, there_and_back.__notes__) == ("look", ["hint: look"])
