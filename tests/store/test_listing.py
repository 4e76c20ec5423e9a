"""Key order is restored from a server that walks folders, and left alone on one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.kernel.keys import Key
from limpet.kernel.store.api import Stat, Version
from limpet.kernel.store.listing import ListedPage, Pages, in_key_order, key_between

FULL = 3
THEN = datetime(2026, 1, 1, tzinfo=UTC)

names = st.text(alphabet="ab-. ~é", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
keys = st.lists(names, min_size=1, max_size=4).map("/".join)


class Server:
    """Lists as S3 does ("keys"), as SeaweedFS does ("folders"), or walks without skipping the folder ("walk")."""

    def __init__(self, held: set[str], order: str) -> None:
        self.held = held
        self.order = order
        self.asked = 0

    def _rank(self, key: str) -> tuple[str, ...]:
        return (key,) if self.order == "keys" else tuple(key.split("/"))

    def pages(self, folder: str, after: str | None) -> Iterator[ListedPage]:
        """See `Pages`."""
        below = [key for key in self.held if key.startswith(folder + "/" if folder else "")]
        if after is not None:
            below = [key for key in below if self._rank(key) > self._rank(after)]
            if self.order == "folders":
                below = [key for key in below if not key.startswith(after + "/")]
        below.sort(key=self._rank)
        for i in range(0, max(len(below), 1), FULL):
            self.asked += 1
            objects = [Stat(Key(key), 0, Version("v"), THEN) for key in below[i : i + FULL]]
            yield ListedPage(objects, more=len(objects) == FULL)


def listed(pages: Pages, prefix: str, after: str | None) -> list[str]:
    return [stat.key for stat in in_key_order(pages, prefix, after)]


@pytest.mark.parametrize("order", ["keys", "folders", "walk"])
@given(held=st.sets(keys, max_size=30), prefix=st.one_of(st.just(""), keys), after=st.one_of(st.none(), keys))
@settings(max_examples=150, deadline=None)
def test_every_key_once_in_byte_order(order: str, held: set[str], prefix: str, after: str | None) -> None:
    start = prefix + "/" if prefix else ""
    expected = [key for key in sorted(held, key=str.encode) if key.startswith(start) and (not after or key > after)]
    assert listed(Server(held, order).pages, prefix, after) == expected


@given(held=st.sets(keys, min_size=1, max_size=30), data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_listing_resumes_behind_any_of_its_keys(held: set[str], data: st.DataObject) -> None:
    after = data.draw(st.sampled_from(sorted(held)))
    assert listed(Server(held, "folders").pages, "", after) == [key for key in sorted(held) if key > after]


@pytest.mark.parametrize("order", ["keys", "folders"])
def test_the_first_key_of_a_large_folder_does_not_wait_for_its_last(order: str) -> None:
    server = Server({f"big/inner/{i:04}" for i in range(3000)} | {"big-sister", "zebra"}, order)
    found = in_key_order(server.pages, "", None)
    assert [next(found).key for _ in range(2)] == ["big-sister", "big/inner/0000"]
    assert server.asked <= 4


def test_a_flat_folder_costs_one_request_per_page() -> None:
    server = Server({f"e{i:04}" for i in range(300)}, "folders")
    assert len(listed(server.pages, "", None)) == 300
    assert server.asked == 300 // FULL


def test_a_place_lies_between_the_keys_or_beyond() -> None:
    names = [f"pending/01{i:05}" for i in range(1000)]
    spots = [key_between(names, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 9.0)]
    assert spots == sorted(spots)
    assert [sum(name <= spot for name in names) // 50 for spot in spots] == [0, 5, 10, 15, 20, 20, 20]
    assert [spot[:15] for spot in spots[-2:]] == ["pending/0101498", "pending/0108991"]


def test_a_place_from_one_key_or_in_a_folder_of_folders() -> None:
    assert key_between(["x/a"], 3.0) == "x/" + "a" * 16
    assert key_between(["q/e1/task", "q/e2/task"], 0.5).startswith("q/e")
