"""What the fuzz has found with other seeds, each as its smallest case."""

from __future__ import annotations

import pytest

from fuzz import kinds
from fuzz.kinds import KINDS, Consumer
from fuzz.mutate import HUGE
from fuzz.run import named, run_case

FOUND: list[tuple[str, str, Consumer]] = [
    ("shard", "#2.1=control", kinds.query_index),
    ("events-state", "fields='\\x1b]0;owned\\x07'", kinds.fold_events),
    ("events-reason", "$.id=markup", kinds.fold_events),
    ("events-state", "fields='x'", kinds.fold_events),
    ("events-state", "fields='[[[[[[[[[[[['", kinds.fold_events),
    ("events-state", "at='\\x1b]0;owned\\x07'", kinds.show_events),
    ("events-state", "at=''", kinds.show_events),
    ("batch", "#3=deep", kinds.query_queue),
    ("receipt-batch", "$.results.0.n=digits4400", kinds.query_queue),
    ("table-manifest", HUGE, kinds.maintain_tables),
    ("table-manifest-list", HUGE, kinds.query_tables),
]


@pytest.mark.parametrize(("kind", "mutation", "consumer"), FOUND, ids=[f"{each[0]} {each[1]}" for each in FOUND])
def test_found_once(kind: str, mutation: str, consumer: Consumer) -> None:
    assert run_case(KINDS[kind], named(KINDS[kind], mutation), [consumer]) == []
