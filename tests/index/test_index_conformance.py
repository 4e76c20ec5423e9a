"""Every name that users rely on, the same in memory, on a directory and in a bucket, on the real clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.index import Index, shard_id
from limpet.kernel.errors import Corrupt, Denied, Invalid, Missing
from limpet.kernel.keys import IndexKeys, Key
from support.index import NAME, Rec, at, keys_in, line_count, objects, shard_data

NASTY = 'quote " slash \\ null \\N line \n return \r unit \x1f record \x1e nul \x00 del \x7f sep \u2028 crab \U0001f980'

KEYS = [
    *["a.com", "A.com", "a/b", "/", "//x", ".", "..", "../../escape", ".hidden", "~", "~/", "a~b", "%", "%2e", "%41"],
    *["100%", "a b", " ", "\t", "\n", "a\nb", "\x1f", "\x1e", "\x00", "\x7f", "\\", "\\N", "\\n", "é", "e\u0301"],
    *["É", "ß", "SS", "日本語", "\U0001f980", "\u2028", "con.json", "x.usv", "x.versions", ".uploads", "k", "k/x", "="],
    *["=41", "#1", "?q=1&r=2", "*", "'", '"', "x" * 300, "X" * 300, "x" * 2000, "ü" * 1000, "/" * 500],
]


@dataclass
class Everything:
    """A column of each kind."""

    id: str
    text: str | None = None
    number: int | None = None
    ratio: float | None = None
    good: bool | None = None
    day: date | None = None
    when: datetime | None = None
    tags: list[str] | None = None
    extra: dict[str, Any] | None = None


class Page(msgspec.Struct):
    """A record of a msgspec type."""

    url: str
    depth: int = 0


@dataclass
class Numbered:
    """A record whose key is a number."""

    n: int
    text: str = ""


@dataclass
class Stamped:
    """A record that has its own `updated_at`."""

    key: str
    updated_at: datetime | None = None


PACKAGE = {
    "fields": [{"name": "domain", "type": "string"}, {"name": "rank", "type": "integer"}],
    "primaryKey": "domain",
}

FULL = Everything("a", NASTY, -(2**63), 1e300, True, date(1999, 12, 31), at(0.000001), ["x", ""], {"b": [1, None]})


@pytest.fixture(params=["memory", "directory"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    """A fleet for what a bucket would not do otherwise: an index there takes hundreds of requests to create."""
    place = f"memory://near-{uuid4().hex}" if request.param == "memory" else str(tmp_path / "near")
    return limpet.open(place, durability="os")


def all_of(index: Index[Any]) -> dict[str, Any]:
    """What a scan shows, by key, each key once."""
    found = [*index.scan()]
    by_key = {record.key: record for record in found}
    assert len(by_key) == len(found)
    return by_key


def everywhere(index: Index[Any]) -> Iterator[None]:
    """While it waits, and when it is compiled: what is asserted must hold each time."""
    yield
    index.compile()
    yield
    index.compile(full=True)
    yield


# ---- put, get, delete, scan ----


def test_put_get_delete(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key")
    assert index.get("a") is None
    index.put(Rec("a", "one"))
    for _ in everywhere(index):
        _is(index, "a", Rec("a", "one"))
    index.put({"key": "a", "text": "two"})
    for _ in everywhere(index):
        _is(index, "a", Rec("a", "two"))
    index.delete("a")
    index.delete("never put")
    for _ in everywhere(index):
        _is(index, "a", None)
    index.put(Rec("a"))
    for _ in everywhere(index):
        _is(index, "a", Rec("a"))
    assert limpet.open(fleet.url).index(NAME).get("a")["text"] is None  # type: ignore[index]


def _is(index: Index[Rec], key: str, wanted: Rec | None) -> None:
    assert index.get(key) == wanted
    assert index.get_many([key, "other"]) == ({key: wanted} if wanted else {})
    assert all_of(index).get(key) == wanted


def test_singles_packs_and_shard_are_read_together(fleet: Fleet) -> None:
    """A key of one shard in each place, one that is in all of them, and one that was deleted in each."""
    index = fleet.index(NAME, Rec, key="key")
    base, pack, single, all_three, gone, back = keys_in("3a", 6)
    index.put_many([Rec(base, "base"), Rec(all_three, "base"), Rec(gone, "base"), Rec(back, "base")])
    index.compile(full=True)
    index.put_many([Rec(pack, "pack"), Rec(all_three, "pack")])
    index.delete(back)
    index.put(Rec(single, "single"))
    index.put(Rec(all_three, "single"))
    index.delete(gone)
    index.put(Rec(back, "back"))
    assert objects(fleet.store, "packs")
    assert objects(fleet.store, "inbox")
    wanted = {
        base: Rec(base, "base"),
        pack: Rec(pack, "pack"),
        single: Rec(single, "single"),
        all_three: Rec(all_three, "single"),
        back: Rec(back, "back"),
    }

    for _ in everywhere(index):
        assert {key: index.get(key) for key in (*wanted, gone)} == {**wanted, gone: None}
        assert index.get_many([*wanted, gone]) == wanted
        assert all_of(index) == wanted
    assert objects(fleet.store, "packs") == objects(fleet.store, "inbox") == []


def test_put_many_returns_how_many_keys_and_the_last_of_each_counts(near: Fleet) -> None:
    index = near.index(NAME, Rec, key="key")
    assert index.put_many(Rec(f"k{n % 50}", str(n)) for n in range(200)) == 50
    assert index.put_many([]) == 0

    for _ in everywhere(index):
        assert all_of(index) == {f"k{n}": Rec(f"k{n}", str(150 + n)) for n in range(50)}


def test_a_put_many_is_all_good_or_nothing(near: Fleet) -> None:
    index = near.index(NAME, Rec, key="key")
    with pytest.raises(Invalid, match=r"record 3 \('c'\): field 'text': expected string, got int 3"):
        index.put_many([Rec("a"), Rec("b"), {"key": "c", "text": 3}])
    assert [*index.scan()] == []
    assert objects(near.store, "inbox") == objects(near.store, "packs") == []


def test_every_kind_of_value(near: Fleet) -> None:
    index = near.index(NAME, Everything, key="id")
    empty = Everything("b", "", 0, 0.0, False, date(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC), [], {})
    index.put(FULL)
    index.put_many([empty, Everything("nothing")])

    for _ in everywhere(index):
        assert index.get("a") == FULL
        assert index.get("b") == empty
        assert index.get("nothing") == Everything("nothing")


def test_every_key(fleet: Fleet) -> None:
    """Slashes, dots, percent, tilde, control characters, either case, either normal form, 2,000 bytes."""
    index = fleet.index(NAME, Rec, key="key")
    for n, key in enumerate(KEYS[::2]):
        index.put(Rec(key, f"single {n}"))
    index.put_many(Rec(key, "many") for key in KEYS[1::2])
    wanted = {key: Rec(key, "many" if at_ % 2 else f"single {at_ // 2}") for at_, key in enumerate(KEYS)}

    def check() -> None:
        assert {key: index.get(key) for key in KEYS} == wanted
        assert index.get_many(KEYS) == wanted
        assert all_of(index) == wanted

    check()
    index.compile(full=True)
    check()
    for key in KEYS[::3]:
        index.delete(key)
        del wanted[key]
    assert index.get_many(KEYS) == wanted
    index.compile(full=True)
    assert all_of(index) == wanted


def test_integer_keys(near: Fleet) -> None:
    index = near.index(NAME, Numbered, key="n")
    numbers = [0, 1, -1, 10, 2**63 - 1, -(2**63)]
    index.put_many(Numbered(n, str(n)) for n in numbers[:3])
    for n in numbers[3:]:
        index.put(Numbered(n, str(n)))
    index.delete(10)

    for _ in everywhere(index):
        assert {n: index.get(n) for n in numbers} == {n: Numbered(n, str(n)) if n != 10 else None for n in numbers}
        assert {*index.get_many(numbers)} == {*numbers} - {10}
    for wrong in ("1", 1.0, True, None):
        with pytest.raises(Invalid):
            index.get(wrong)  # type: ignore[arg-type]
    for large in (2**63, -(2**63) - 1, 2**70):
        for act in (index.delete, lambda n: index.put(Numbered(n))):
            with pytest.raises(Invalid):
                act(large)


@pytest.mark.parametrize("key", ["", "x" * 3000, "\ud800", None, 3])
def test_what_cannot_be_a_key(key: Any) -> None:
    index = limpet.open("memory://").index(NAME, Rec, key="key")
    for act in (index.get, index.delete, lambda key: index.put(Rec(key)), lambda key: index.put_many([Rec(key)])):
        with pytest.raises(Invalid):
            act(key)
    assert [*index.scan()] == []


@pytest.mark.parametrize("name", ["a/b", "..", "A", "datapackage.json", ".hidden"])
def test_an_index_may_have_an_odd_name(near: Fleet, name: str) -> None:
    one_of_an_odd_name(near, name)


def test_a_name_that_a_listing_cannot_tell_is_refused(near: Fleet) -> None:
    with pytest.raises(Invalid, match="too long for an index"):
        near.index("x" * 300, Rec, key="key")


def test_so_it_may_in_a_bucket(fleet: Fleet) -> None:
    one_of_an_odd_name(fleet, "../Ünïx %2e ~#1/A.json")


def one_of_an_odd_name(fleet: Fleet, name: str) -> None:
    """It lives beside one of a plain name."""
    fleet.index("a", Rec, key="key").put(Rec("a", "of the index a"))
    index = fleet.index(name, Rec, key="key")
    index.put(Rec("a", "of this one"))
    index.compile()
    assert limpet.open(fleet.url).index(name, Rec, key="key").get("a") == Rec("a", "of this one")
    assert fleet.index("a", Rec, key="key").get("a") == Rec("a", "of the index a")


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "\ud800"])
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(Invalid):
        limpet.open("memory://").index(name, Rec, key="key")


@pytest.mark.parametrize("depth", [2, 3])
def test_depth_is_kept(depth: int) -> None:
    near = limpet.open(f"memory://depth-{uuid4().hex}")
    index = near.index(NAME, Rec, key="key", depth=depth)
    index.put_many(Rec(f"k{n}") for n in range(30))
    index.compile(full=True)
    assert len(objects(near.store, "shards")) - len({shard_id(f"k{n}", depth) for n in range(30)}) == 16**depth
    again = limpet.open(near.url).index(NAME, Rec, key="key")
    assert again.manifest.depth == depth
    assert len([*again.scan()]) == 30
    with pytest.raises(Invalid, match=f"has depth {depth}"):
        assert near.index(NAME, Rec, key="key", depth=4).get("a")


# ---- types ----


def test_a_struct_a_package_and_no_type(near: Fleet) -> None:
    pages = near.index("pages", Page, key="url")
    pages.put(Page("u", 3))
    pages.put({"url": "v"})
    for _ in everywhere(pages):
        _pages(pages, near)
    domains = near.index("domains", PACKAGE)
    domains.put({"domain": "a.com", "rank": 7})
    found = near.index("domains").get("a.com")
    assert found is not None
    assert (found["domain"], found["rank"]) == ("a.com", 7)
    with pytest.raises(Missing, match="no index 'nowhere'"):
        near.index("nowhere").get("a")
    with pytest.raises(Invalid, match="key"):
        near.index("keyless", Rec).put(Rec("a"))


def _pages(pages: Index[Page], fleet: Fleet) -> None:
    assert pages.get("u") == Page("u", 3)
    assert pages.get("v") == Page("v", 0)
    assert {*(fleet.index("pages").get("u") or ())} == {"url", "depth", "updated_at"}


def test_a_record_may_bring_its_own_time_and_the_later_one_wins(near: Fleet) -> None:
    index = near.index(NAME, Stamped, key="key")
    index.put(Stamped("a", at(20)))
    index.put(Stamped("a", at(10)))

    def check() -> None:
        assert index.get("a") == Stamped("a", at(20))

    for _ in everywhere(index):
        check()
    index.put(Stamped("a", at(15)))
    for _ in everywhere(index):
        check()
    with pytest.raises(Invalid, match="more than a day ahead"):
        index.put(Stamped("a", datetime.now(UTC) + timedelta(days=2)))
    with pytest.raises(Invalid, match="time zone"):
        index.put(Stamped("a", datetime(2026, 1, 1)))
    index.put(Stamped("a"))
    found = index.get("a")
    assert found is not None
    assert found.updated_at is not None
    assert found.updated_at > at(20)


def test_a_tie_is_won_by_content_wherever_the_two_meet(near: Fleet) -> None:
    """In a single, a pack or the shard, in either order."""
    keys = keys_in("3a", 8)
    index = near.index(NAME, Rec, key="key")
    records = {(key, text): {"key": key, "text": text, "updated_at": at(0)} for key in keys for text in ("low", "top")}
    for n, key in enumerate(keys):
        first, second = ("low", "top") if n % 2 else ("top", "low")
        index.put(records[key, first]) if n & 2 else index.put_many([records[key, first], {"key": f"{key}x"}])
        if n & 4:
            index.compile(full=True)
        index.put(records[key, second])

    for _ in everywhere(index):
        assert [index.get(key) for key in keys] == [Rec(key, "top") for key in keys]
        found = all_of(index)
        assert [found[key] for key in keys] == [Rec(key, "top") for key in keys]


# ---- several handles ----


@dataclass
class Wider:
    """`Rec` with a column more."""

    key: str
    text: str | None = None
    rank: int | None = None


@dataclass
class Widest:
    """`Wider` with one more."""

    key: str
    text: str | None = None
    rank: int | None = None
    tags: list[str] | None = None


def test_handles_of_each_age_read_write_and_compile_side_by_side(near: Fleet) -> None:
    old = near.index(NAME, Rec, key="key")
    old.put(Rec("a", "old"))
    old.compile(full=True)
    new = limpet.open(near.url).index(NAME, Wider, key="key")
    new.put(Wider("b", "new", 7))
    old.put(Rec("c", "old"))
    newest = limpet.open(near.url).index(NAME, Widest, key="key")
    newest.put_many([Widest("d", None, 1, ["x"]), Widest("e", "only", None, None)])
    for compiler in (old, new, newest):
        assert newest.get("a") == Widest("a", "old")
        assert newest.get("b") == Widest("b", "new", 7)
        assert new.get("d") == Wider("d", None, 1)
        assert old.get("b") == Rec("b", "new")
        assert {record.key for record in old.scan()} == {*"abcde"}
        assert [record.tags for record in newest.scan() if record.tags] == [["x"]]
        compiler.compile(full=True)
        old.put(Rec("c", "old"))
    names = [field.name for field in newest.manifest.fields]
    assert names == ["key", "text", "updated_at", "_deleted", "rank", "tags"]
    assert newest.manifest.schema_version == 3


@pytest.mark.parametrize(
    ("kind", "key"),
    [(Rec, "key"), (Page, "url"), (PACKAGE, None), (Everything, "id"), (Numbered, "n"), (Stamped, "key")],
)
def test_opening_it_again_with_the_same_schema_changes_nothing(near: Fleet, kind: Any, key: str | None) -> None:
    first = near.index(NAME, kind, key=key).manifest
    with near.meter.measure() as cost:
        again = near.index(NAME, kind, key=key).manifest
    assert again == first
    assert cost.requests == {"get": 1}
    assert again.schema_version == 1


@dataclass
class Renamed:
    """`Rec` with another name for its text."""

    key: str
    words: str | None = None


@dataclass
class Retyped:
    """`Rec` with a number for its text."""

    key: str
    text: int | None = None


@dataclass
class Stricter:
    """`Rec` with a new column that must be there."""

    key: str
    rank: int
    text: str | None = None


@pytest.mark.parametrize("kind", [Renamed, Retyped, Stricter])
def test_a_schema_only_grows_at_its_end(kind: type) -> None:
    fleet = limpet.open("memory://")
    fleet.index(NAME, Rec, key="key").put(Rec("a", "kept"))
    with pytest.raises(Invalid) as caught:
        fleet.index(NAME, kind, key="key").get("a")
    assert caught.value.hint
    assert fleet.index(NAME, Rec, key="key").get("a") == Rec("a", "kept")
    assert fleet.index(NAME).manifest.schema_version == 1


def test_handles_that_create_the_same_index_at_once(url: str) -> None:
    fleets = [limpet.open(url) for _ in range(6)]
    start = threading.Barrier(len(fleets))
    failed: list[BaseException] = []

    def create(n: int) -> None:
        start.wait()
        try:
            fleets[n].index(NAME, Wider if n % 2 else Rec, key="key").put({"key": f"k{n}"})
        except limpet.LimpetError as error:
            failed.append(error)

    _at_once([lambda n=n: create(n) for n in range(len(fleets))])  # type: ignore[misc]
    assert failed == []
    index = limpet.open(url).index(NAME, Wider, key="key")
    assert {record.key for record in index.scan()} == {f"k{n}" for n in range(len(fleets))}


def _at_once(acts: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- compiling ----


def test_two_compilers_writers_and_a_reader_at_once(url: str) -> None:
    """Every key only rises, from whichever place it is read."""
    indexes = [limpet.open(url).index(NAME, Rec, key="key") for _ in range(5)]
    keys = [*keys_in("3a", 4), *keys_in("77", 4)]
    indexes[0].put_many(Rec(key, "0000") for key in keys)
    ended = threading.Event()
    failed: list[str] = []

    def write(index: Index[Rec], mine: list[str]) -> None:
        for n in range(1, 16):
            if n % 3:
                for key in mine:
                    index.put(Rec(key, f"{n:04}"))
            else:
                index.put_many(Rec(key, f"{n:04}") for key in mine)
            for key in mine:
                if index.get(key) != Rec(key, f"{n:04}"):
                    failed.append(f"{key}: an acknowledged put was not seen")

    def compile_(index: Index[Rec]) -> None:
        while not ended.is_set():
            index.compile(full=True)

    def read(index: Index[Rec]) -> None:
        seen = dict.fromkeys(keys, "")
        while not ended.is_set():
            for key in keys:
                found = index.get(key)
                if found is None or (found.text or "") < seen[key]:
                    failed.append(f"{key}: {found} after {seen[key]}")
                    return
                seen[key] = found.text or ""
            missing = {*keys} - {record.key for record in index.scan()}
            if missing:
                failed.append(f"the scan missed {missing}")

    others = [
        threading.Thread(target=work, args=(index,))
        for work, index in zip((compile_, compile_, read), indexes[2:], strict=True)
    ]
    for thread in others:
        thread.start()
    try:
        _at_once([lambda: write(indexes[0], keys[::2]), lambda: write(indexes[1], keys[1::2])])
    finally:
        ended.set()
        for thread in others:
            thread.join()
    assert failed == []
    indexes[0].compile(full=True)
    fleet = limpet.open(url)
    assert all_of(fleet.index(NAME, Rec, key="key")) == {key: Rec(key, "0015") for key in keys}
    assert objects(fleet.store, "inbox") == objects(fleet.store, "packs") == []
    assert line_count(fleet.store) == len(keys)


def test_compiling_twice_changes_nothing(near: Fleet) -> None:
    index = near.index(NAME, Rec, key="key")
    index.put_many(Rec(key, "x") for key in keys_in("3a", 20))
    index.compile(full=True)
    before = shard_data(near.store, "3a")
    report = index.compile(full=True)
    assert (report.folded, report.objects) == (0, 0)
    assert shard_data(near.store, "3a") == before


def test_a_report_counts_what_was_done(near: Fleet) -> None:
    index = near.index(NAME, Rec, key="key")
    index.put_many(Rec(key) for key in keys_in("3a", 20))
    index.put(Rec(keys_in("77", 1)[0]))
    report = index.compile()
    assert (report.folded, report.objects, report.records, report.held, report.conflicts) == (2, 2, 21, 0, 0)
    size = len(shard_data(near.store, "3a")) + len(shard_data(near.store, "77"))
    assert report.written_bytes == size
    manifest = limpet.open(near.url).index(NAME).manifest
    assert sum(manifest.records) == 21
    assert sum(manifest.sizes) == size


def test_compiling_is_spread_over_threads(url: str) -> None:
    spread_over(ThreadPoolExecutor(3), url)


@pytest.mark.parametrize("url", ["directory", "seaweedfs"], indirect=True)
def test_compiling_is_spread_over_processes(url: str) -> None:
    spread_over(ProcessPoolExecutor(2, mp_context=get_context("spawn")), url)


def spread_over(pool: Executor, url: str) -> None:
    """Compile with an executor; all is folded and counted as without."""
    fleet = limpet.open(url)
    index = fleet.index(NAME, Rec, key="key")
    records = {f"k{n}": Rec(f"k{n}", str(n)) for n in range(120)}
    index.put_many(records.values())
    with pool:
        report = index.compile(pool, full=True)
        assert report.records == 120
        assert objects(fleet.store, "packs") == objects(fleet.store, "inbox") == []
        assert index.compile(pool, full=True).folded == 0
    assert all_of(index) == records
    assert sum(limpet.open(url).index(NAME).manifest.records) == 120


@pytest.mark.parametrize("url", ["directory"], indirect=True)
def test_an_error_of_another_process_comes_back_as_it_is(url: str) -> None:
    fleet = limpet.open(url)
    index = fleet.index(NAME, Rec, key="key")
    index.put_many(Rec(key) for shard in ("3a", "77") for key in keys_in(shard, 2))
    fleet.store.delete(IndexKeys.of(NAME).shard("3a"))
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(Corrupt, match=r"3a\.usv is missing") as caught,
    ):
        index.compile(pool, full=True)
    assert "else restore it" in caught.value.hint
    assert index.get(keys_in("77", 1)[0]), "the rest was compiled"
    assert shard_data(fleet.store, "77")


# ---- what is amiss ----


def test_a_missing_shard_is_an_error_for_everybody(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key")
    keys = keys_in("3a", 3)
    index.put_many(Rec(key) for key in keys)
    index.compile(full=True)
    fleet.store.delete(IndexKeys.of(NAME).shard("3a"))
    fresh = limpet.open(fleet.url).index(NAME, Rec, key="key")
    index.put(Rec(keys[0], "waits"))
    for act in (
        lambda: index.get(keys[0]),
        lambda: fresh.get(keys[1]),
        lambda: fresh.get_many(keys),
        lambda: [*fresh.scan()],
        lambda: fresh.compile(full=True),
    ):
        with pytest.raises(Corrupt, match=r"3a\.usv is missing"):
            act()
    assert objects(fleet.store, "inbox"), "what waits is kept"
    assert not fleet.store.list_dirs(f"{IndexKeys.of(NAME).root}/quarantine")


BAD = {
    "no line feed at its end": b"a\x1fb",
    "too few fields": b"rubbish\n",
    "a stamp that is none": b"%s\x1ftext\x1fsoon\x1f0\n",
    "not UTF-8": b"%s\x1f\xff\xfe\x1f2026-01-01T00:00:00.000000Z\x1f0\n",
    "another shard's": b"zzz\x1ftext\x1f2026-01-01T00:00:00.000000Z\x1f0\n",
    "an escape that there is not": b"%s\x1f\\q\x1f2026-01-01T00:00:00.000000Z\x1f0\n",
    "a control character": b"%s\x1fa\x00b\x1f2026-01-01T00:00:00.000000Z\x1f0\n",
    "a mark that is none": b"%s\x1ftext\x1f2026-01-01T00:00:00.000000Z\x1f2\n",
}


@pytest.mark.parametrize("where", ["inbox", "packs"])
@pytest.mark.parametrize("what", [*BAD])
def test_what_cannot_be_read_goes_to_quarantine_and_the_rest_goes_on(what: str, where: str) -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    good, other, bad = keys_in("3a", 3)
    index.put(Rec(good, "single"))
    index.put_many([Rec(good, "newer"), Rec(other, "pack")])
    data = BAD[what].replace(b"%s", bad.encode())
    keys = IndexKeys.of(NAME)
    stamp = "2026-01-01T00:00:00.000000Z"
    key = keys.single("3a", bad, stamp, "0" * 26) if where == "inbox" else keys.pack("3a", "0" * 26)
    fleet.store.put(key, data)
    report = index.compile(full=True)
    assert (report.quarantined, report.folded) == (1, 1)
    assert all_of(index) == {good: Rec(good, "newer"), other: Rec(other, "pack")}
    assert index.get(bad) is None
    (kept,) = objects(fleet.store, "quarantine")
    note = msgspec.json.decode(fleet.store.get(kept).data)
    assert note["key"] == key
    assert note["reason"]
    assert msgspec.convert(note["data"], bytes) == data
    assert objects(fleet.store, "inbox") == objects(fleet.store, "packs") == []


@pytest.mark.parametrize("what", [*BAD])
def test_until_then_it_is_an_error_to_read_it(what: str) -> None:
    """F23: never a record that nobody wrote, never an absent one."""
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    bad = keys_in("3a", 1)[0]
    data = BAD[what].replace(b"%s", bad.encode())
    fleet.store.put(IndexKeys.of(NAME).single("3a", bad, "2026-01-01T00:00:00.000000Z", "0" * 26), data)
    reads: list[Callable[[], object]] = [lambda: [*index.scan()]]
    if what != "another shard's":  # which says nothing of this key
        reads += [lambda: index.get(bad), lambda: index.get_many([bad])]
    for read in reads:
        with pytest.raises(Corrupt):
            read()


def test_a_shard_that_lost_records_is_not_built_upon(near: Fleet) -> None:
    index = near.index(NAME, Rec, key="key")
    keys = keys_in("3a", 10)
    index.put_many(Rec(key) for key in keys)
    index.compile(full=True)
    whole = shard_data(near.store, "3a")
    near.store.put(IndexKeys.of(NAME).shard("3a"), whole[: whole.rindex(b"\n", 0, -1) + 1])
    index.put(Rec(keys[0], "waits"))
    index.put(Rec(keys_in("77", 1)[0]))
    with pytest.raises(Corrupt, match="has 9 records, and had 10"):
        index.compile(full=True)
    assert len(objects(near.store, "inbox")) == 1, "the other shard was compiled"
    near.store.put(IndexKeys.of(NAME).shard("3a"), whole)
    index.compile(full=True)
    assert index.get(keys[0]) == Rec(keys[0], "waits")


@pytest.mark.parametrize("damage", ["cut", "order", "twice"])
def test_a_damaged_shard_is_not_built_upon(damage: str) -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    keys = keys_in("3a", 10)
    index.put_many(Rec(key) for key in keys)
    index.compile(full=True)
    lines = shard_data(fleet.store, "3a").splitlines(keepends=True)
    broken = {"cut": b"".join(lines)[:-3], "order": b"".join(reversed(lines)), "twice": b"".join([lines[0], *lines])}[
        damage
    ]
    fleet.store.put(IndexKeys.of(NAME).shard("3a"), broken)
    index.put(Rec(keys[0], "waits"))
    for act in (lambda: index.compile(full=True), lambda: [*index.scan()]):
        with pytest.raises(Corrupt, match=r"3a\.usv"):
            act()
    assert shard_data(fleet.store, "3a") == broken
    assert len(objects(fleet.store, "inbox")) == 1


def test_strange_folders_and_empty_objects_are_no_trouble(near: Fleet) -> None:
    index = near.index(NAME, Rec, key="key")
    key = keys_in("3a", 1)[0]
    index.put(Rec(key))
    root = IndexKeys.of(NAME).root
    near.store.put(Key(f"{root}/inbox/zz/a/1-2.usv"), b"a")
    near.store.put(Key(f"{root}/packs/3/a.usv"), b"a")
    near.store.put(Key(f"{root}/packs/lost+found/a.usv"), b"a")
    near.store.put(Key(f"{root}/packs/3a/0.usv"), b"")

    for _ in everywhere(index):
        assert index.get(key) == Rec(key)
        assert all_of(index) == {key: Rec(key)}
    assert len(objects(near.store, "packs")) == 2


# ---- a fleet that may only read ----


def test_a_read_only_fleet_reads_and_changes_nothing(fleet: Fleet) -> None:
    fleet.index(NAME, Rec, key="key").put(Rec("a", "one"))
    before = [(stat.key, stat.version) for stat in fleet.store.list()]
    reader = limpet.open(fleet.url, read_only=True)
    index = reader.index(NAME, Rec, key="key")
    assert index.get("a") == Rec("a", "one")
    assert index.get_many(["a"]) == {"a": Rec("a", "one")}
    assert all_of(index) == {"a": Rec("a", "one")}
    for act in (
        lambda: index.put(Rec("a")),
        lambda: index.put_many([Rec("a"), Rec("b")]),
        lambda: index.delete("a"),
        lambda: index.compile(full=True),
        lambda: reader.index("new", Rec, key="key").get("a"),
    ):
        with pytest.raises(Denied):
            act()
    wider = reader.index(NAME, Wider, key="key")
    assert wider.get("a") == Wider("a", "one")
    with pytest.raises(Invalid, match="there is no field"):
        wider.put(Wider("a"))
    assert [(stat.key, stat.version) for stat in fleet.store.list()] == before
    with pytest.raises(Missing):
        reader.index("nowhere").get("a")


def test_a_reader_in_the_same_process_does_not_set_the_clock_of_a_writer(url: str) -> None:
    limpet.open(url).index(NAME, Stamped, key="key").put(Stamped("old", at(0)))
    reader = limpet.open(url, read_only=True).index(NAME, Stamped, key="key")
    began = datetime.now(UTC)
    assert reader.get("old")
    index = limpet.open(url).index(NAME, Stamped, key="key")
    index.put(Stamped("new"))
    found = index.get("new")
    assert found is not None
    assert found.updated_at is not None
    assert found.updated_at > began - timedelta(seconds=2)
