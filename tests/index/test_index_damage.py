"""Damage is an error, never an empty or short answer (failures.md F23); what is healthy is never refused."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.index import DamagedShardWarning, Index, shard_id
from limpet.index.codec import Field
from limpet.index.compiler import Compiler, read_quarantined
from limpet.index.files import export
from limpet.index.reader import DamagedShard
from limpet.index.storage import Count, Fold, Manifest, fresh, manifest_cell, noted, sum_of, with_counts
from limpet.index.types import with_own
from limpet.kernel.errors import Corrupt, Denied, LimpetError
from limpet.kernel.keys import IndexKeys, Key, single_stamp
from limpet.kernel.store import MemoryStore
from limpet.kernel.store.api import Version
from limpet.publish import CompiledShards
from support.clock import Time
from support.costs import requests
from support.index import NAME, Process, Rec, keys_in, objects

KEYS = IndexKeys.of(NAME)
SHARD = "3a"
AT = KEYS.shard(SHARD)
MANY = keys_in(SHARD, 40)
OTHERS = [key for key in (f"other{n}" for n in range(60)) if shard_id(key) != SHARD][:50]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return limpet.open(tmp_path / "fleet", durability="os")


@pytest.fixture
def index(fleet: Fleet) -> Index[Rec]:
    """Forty records in one shard and some in others, all compiled."""
    ix = fleet.index(NAME, Rec, key="key")
    ix.put_many([Rec(key, "x" * 100) for key in MANY])
    ix.put_many([Rec(key) for key in OTHERS])
    ix.compile(full=True)
    return fleet.index(NAME, Rec, key="key")


def _cut(data: bytes) -> bytes:
    """The first half of the lines."""
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2])


def _without_last(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def _without_first(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[1:])


def _changed(data: bytes) -> bytes:
    """One letter of a record is another one, and every line is still a record."""
    return data.replace(b"xxxx", b"xxyx", 1)


SHORT: list[Callable[[bytes], bytes]] = [lambda data: b"", _cut, _without_last, _without_first]
SHORT_IDS = ["emptied", "cut in half", "the last record gone", "the first record gone"]


def spoil(fleet: Fleet, change: Callable[[bytes], bytes]) -> None:
    data = fleet.store.get(AT, size_max=None).data
    assert change(data) != data
    fleet.store.put(AT, change(data))


def kinds(index: Index[Any]) -> set[str]:
    return {finding.kind for finding in index.verify().findings if finding.wrong}


# ---- a shard that lost records ----


@pytest.mark.parametrize("change", SHORT, ids=SHORT_IDS)
def test_whoever_reads_a_short_shard_is_told_so(
    fleet: Fleet, index: Index[Rec], change: Callable[[bytes], bytes]
) -> None:
    """F23: on 0.1 `get` says "no record", and `sql`, `scan` and `export` leave out what is gone."""
    spoil(fleet, change)
    reads: dict[str, Callable[[], object]] = {
        "get": lambda: [index.get(key) for key in MANY],
        "a get that would find nothing anyway": lambda: index.get(next(k for k in keys_in(SHARD, 99) if k not in MANY)),
        "get by a new handle": lambda: [fleet.index(NAME, Rec, key="key").get(key) for key in MANY],
        "get_many of one": lambda: index.get_many(MANY[:1]),
        "get_many": lambda: index.get_many(MANY),
        "scan": lambda: [*index.scan()],
        "sql": lambda: index.sql(f"select count(*) from {NAME}"),
        "export": lambda: [*export(index, BytesIO(), "csv")],
        "publish": lambda: [
            *CompiledShards(index.storage, index.manifest).read(CompiledShards(index.storage, index.manifest).parts())
        ],
    }
    for what, read in reads.items():
        with pytest.raises(Corrupt, match=f"{SHARD}.usv has .* records, and had 40 before: some are lost"):
            pytest.fail(f"{what} answers {read()!r}"[:200])
    assert kinds(index) == {"lost"}
    other = OTHERS[0]
    assert index.get(other) is not None, "other shards are read as before"


@pytest.mark.parametrize("change", SHORT, ids=SHORT_IDS)
def test_nothing_is_compiled_into_a_short_shard_and_all_others_are(
    fleet: Fleet, index: Index[Rec], change: Callable[[bytes], bytes]
) -> None:
    spoil(fleet, change)
    index.put(Rec(MANY[0], "later"))
    other = OTHERS[0]
    index.put(Rec(other, "later"))
    before = fleet.store.get(AT, size_max=None).data
    with pytest.raises(Corrupt, match="some are lost"):
        index.compile()
    assert fleet.store.get(AT, size_max=None).data == before
    assert [f"/{SHARD}/" in key for key in objects(fleet.store, "inbox")] == [True]


def test_a_large_shard_of_a_directory_that_duckdb_reads_by_itself(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key")
    index.put_many([Rec(key, "x" * 3000) for key in MANY])
    index.compile(full=True)
    assert index.sql(f"select count(*) from {NAME}")[0] == (40,)
    spoil(fleet, _without_last)
    with pytest.raises(Corrupt, match="some are lost"):
        index.sql(f"select count(*) from {NAME}")


def test_records_that_become_shorter_are_no_loss(fleet: Fleet, index: Index[Rec]) -> None:
    """A shard may shrink: a handle that knows an older size looks once at the manifest, and goes on."""
    other = fleet.index(NAME, Rec, key="key")
    other.put_many([Rec(key, "") for key in MANY])
    other.compile(full=True)
    first = requests(fleet, lambda: index.get(MANY[0]))
    assert index.get(MANY[0]) == Rec(MANY[0], "")
    assert requests(fleet, lambda: index.get(MANY[0])).get("get", 0) <= first["get"]
    assert len([*index.scan()]) == 90
    assert kinds(index) == set()


def test_a_fold_that_made_a_shard_smaller_and_was_not_recorded_is_counted_once(
    fleet: Fleet, index: Index[Rec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that dies before it records its fold: readers count the records of the smaller shard."""
    other = fleet.index(NAME, Rec, key="key")
    other.put_many([Rec(key, "") for key in MANY])
    monkeypatch.setattr(Compiler, "record", lambda *_: None)
    other.compile(full=True)
    monkeypatch.undo()
    assert index.get(MANY[0]) is not None
    usual = requests(fleet, lambda: index.get(MANY[1]))
    assert usual["get"] <= 4, "the packs that wait still, and the shard: it is not read whole again"
    assert len([*index.scan()]) == 90
    assert kinds(index) == set(), "what was folded still waits, so it is known whose bytes these are"
    index.compile(full=True)
    assert objects(fleet.store, "packs") == []
    assert index.verify().findings == []


# ---- changed bytes ----


def test_verify_finds_a_changed_byte_and_compile_does_not_build_upon_it(fleet: Fleet, index: Index[Rec]) -> None:
    """F23: every line still parses, and no record is missing."""
    spoil(fleet, _changed)
    assert len([*index.scan()]) == 90, "readers do not read all bytes twice"
    [finding] = index.verify().findings
    assert (finding.kind, finding.key, finding.wrong) == ("changed", AT, True)
    assert "--accept-loss" in finding.hint
    index.put(Rec(MANY[0], "later"))
    assert kinds(index) == {"changed"}, "a record that waits does not explain it"
    with pytest.raises(Corrupt, match="was changed since it was compiled"):
        index.compile()
    assert len(objects(fleet.store, "inbox")) == 1
    with pytest.raises(Corrupt, match="was changed since it was compiled"):
        index.purge(quiesced=True)
    with pytest.raises(Corrupt, match="was changed since it was compiled"):
        index.reshard(3, quiesced=True)


@pytest.mark.parametrize("where", range(0, 4000, 97))
def test_verify_finds_any_changed_byte(fleet: Fleet, index: Index[Rec], where: int) -> None:
    data = bytearray(fleet.store.get(AT, size_max=None).data)
    data[where] = data[where] ^ 1
    fleet.store.put(AT, bytes(data))
    assert kinds(index) & {"changed", "bad_line", "bad_value", "order", "duplicate", "misplaced", "cut_off", "lost"}


def test_an_older_version_of_a_shard_is_noticed(fleet: Fleet, index: Index[Rec]) -> None:
    older = fleet.store.get(AT, size_max=None).data
    index.put_many([Rec(key, "newer") for key in MANY])
    index.compile(full=True)
    fleet.store.put(AT, older)
    assert kinds(index) == {"changed"}


def test_an_index_of_a_version_that_recorded_no_digests(fleet: Fleet, index: Index[Rec]) -> None:
    """Format 1 as 0.1 wrote it: nothing is refused, and digests are recorded as shards are folded."""
    cell = manifest_cell(index.storage)
    cell.update(_without_sums)
    assert not any(finding.wrong for finding in index.verify().findings)
    index.put(Rec(MANY[0], "later"))
    index.compile()
    seen = cell.read()
    assert seen is not None
    assert [bool(each) for each in seen.value.sums].count(True) == 1
    spoil(fleet, lambda data: data.replace(b"later", b"Later"))
    assert kinds(index) == {"changed"}
    index.verify(accept_loss=True, repair=True)
    seen = cell.read()
    assert seen is not None
    assert all(seen.value.sums)
    assert index.verify().ok


def _without_sums(manifest: Manifest | None) -> Manifest:
    assert manifest is not None
    return msgspec.structs.replace(manifest, sums=())


# ---- what is recorded, and when ----


def _manifest() -> Manifest:
    return fresh(with_own([Field("key", "string")], "key"), 2)


def _never(shard: str, version: Version) -> bool:
    raise AssertionError("there is no need to look")


A, B, C = (Count(n, 10 * n, sum_of(b"x" * n)) for n in (1, 2, 3))


def test_a_fold_upon_what_is_recorded_is_recorded_without_a_look() -> None:
    first, recorded = noted(_manifest(), {"3a": Fold(A, Version("1"), sum_of(b""))}, _never)
    assert (first.count("3a"), recorded) == (A, frozenset({"3a"}))
    second, recorded = noted(first, {"3a": Fold(B, Version("2"), A.sum)}, _never)
    assert (second.count("3a"), recorded) == (B, frozenset({"3a"}))
    assert noted(second, {"3a": Fold(B, Version("2"), A.sum)}, _never) == (second, frozenset({"3a"})), (
        "again: nothing changes"
    )
    assert second.count("3b") == Count(0, 0, "-")


def test_a_fold_upon_something_else_is_recorded_only_if_it_is_what_the_shard_is_now() -> None:
    manifest, _ = noted(_manifest(), {"3a": Fold(B, Version("2"))}, lambda shard, version: True)
    late = {"3a": Fold(A, Version("1"), sum_of(b""))}
    asked: list[tuple[str, Version]] = []

    def no(shard: str, version: Version) -> bool:
        asked.append((shard, version))
        return False

    assert noted(manifest, late, no) == (manifest, frozenset())
    assert asked == [("3a", Version("1"))]
    newer = {"3a": Fold(C, Version("3"), "of one that was never recorded")}
    assert noted(manifest, newer, lambda shard, version: version == "3")[0].count("3a") == C


def test_an_unknown_digest_is_no_base_of_anything() -> None:
    manifest = with_counts(_manifest(), {"3a": Count(1, 10)})
    assert noted(manifest, {"3a": Fold(B, Version("2"), "")}, lambda *_: False) == (manifest, frozenset())


def test_what_was_folded_goes_only_once_that_is_recorded(fleet: Fleet, index: Index[Rec]) -> None:
    """The manifest cannot be written: the fold stands, what was folded waits, and the next run records and deletes."""
    index.put(Rec(MANY[0], "later"))
    real = index.storage.store.put

    def put(key: Key, data: bytes, **options: Any) -> Version:
        if key == KEYS.manifest:
            raise limpet.Unavailable("no answer")
        return real(key, data, **options)

    index.storage.store.put = put  # type: ignore[method-assign]
    report = index.compile()
    assert (report.folded, len(objects(fleet.store, "inbox"))) == (1, 1)
    index.storage.store.put = real  # type: ignore[method-assign]
    fresh = fleet.index(NAME, Rec, key="key")
    assert kinds(fresh) == set(), "explained by what waits"
    assert fresh.compile().folded == 1
    assert objects(fleet.store, "inbox") == []
    assert fresh.verify().findings == []


def test_rounds_bound_what_a_run_that_dies_repeats(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.index.compiler.ROUND_SHARDS", 3)
    index = fleet.index(NAME, Rec, key="key")
    index.put_many([Rec(f"k{n}") for n in range(40)])
    shards = len({shard_id(f"k{n}") for n in range(40)})
    spent = requests(fleet, lambda: index.compile(full=True))
    assert spent["delete"] == shards
    assert index.verify().findings == []


# ---- lines that no Limpet wrote ----


def test_a_line_with_too_many_fields_is_cheap_and_goes_to_quarantine(fleet: Fleet, index: Index[Rec]) -> None:
    """300,000 fields took 25 s for each scan, and were compiled into the shard."""
    width = len(index.manifest.fields)
    data = _line(index, MANY[0], extra=300_000 - width)
    fleet.store.put(KEYS.pack(SHARD, "large"), data)
    with pytest.raises(Corrupt, match="line 1 is not a record"):
        [*index.scan()]
    with pytest.raises(Corrupt):
        index.get_many(MANY)
    assert index.compile(full=True).quarantined == 1
    assert len([*index.scan()]) == 90
    assert max(index.manifest.schema._matchers, default=0) <= width, "no pattern is made for so many fields"
    assert index.verify().ok


def test_a_line_of_a_newer_schema_with_many_columns_is_a_record(fleet: Fleet, index: Index[Rec]) -> None:
    fleet.store.put(KEYS.pack(SHARD, "newer"), _line(index, MANY[0], extra=50))
    assert index.compile(full=True).quarantined == 0
    assert index.get(MANY[0]) is not None
    assert index.verify().ok
    fleet.store.put(KEYS.pack(SHARD, "control"), _line(index, MANY[0], extra=5).replace(b"more", b"mo\x01e", 1))
    assert index.compile(full=True).quarantined == 1


def _line(index: Index[Any], key: str, *, extra: int) -> bytes:
    line = index.manifest.schema.line({"key": key}, "2026-01-01T00:00:00.000000Z", where="it")
    return line + b"\x1fmore" * extra + b"\n"


@pytest.mark.parametrize("text", ["1e999", "-1e999", "1.8e308", "inf", "nan", "9" * 400, "10e308"])
def test_a_number_that_is_not_finite_is_no_record(fleet: Fleet, text: str) -> None:
    """`1e999` read as inf."""
    fields = [{"name": "key", "type": "string"}, {"name": "n", "type": "number"}]
    index = fleet.index("numbers", {"fields": fields, "primaryKey": "key"})
    index.put({"key": "good", "n": 1.7976931348623157e308})
    line = index.manifest.schema.line({"key": "bad", "n": 7.0}, "2026-01-01T00:00:00.000000Z", where="it")
    keys = IndexKeys.of("numbers")
    fleet.store.put(keys.pack(shard_id("bad"), "p"), line.replace(b"7.0", text.encode()) + b"\n")
    with pytest.raises(Corrupt):
        index.get("bad")
    assert index.compile(full=True).quarantined == 1
    good = index.get("good")
    assert good is not None
    assert good["n"] == 1.7976931348623157e308
    assert index.get("bad") is None


# ---- objects that are too large ----


def test_an_object_that_is_too_large_is_left_and_all_others_are_compiled(
    fleet: Fleet, index: Index[Rec], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("storage", "compiler", "maintain.verify", "maintain.repairs"):
        monkeypatch.setattr(f"limpet.index.{module}.WAITING_BYTES_MAX", 10_000)
    large = KEYS.pack(SHARD, "large")
    fleet.store.put(large, b"x" * 20_000)
    index.put(Rec(MANY[0], "later"))
    with pytest.raises(Corrupt, match="is larger than any object that Limpet writes"):
        index.compile(full=True)
    assert objects(fleet.store, "inbox") == []
    assert [*objects(fleet.store, "packs")] == [large]
    with pytest.raises(Corrupt, match="20,000 bytes"):
        [*index.scan()]
    assert kinds(index) == {"too_large"}


def test_a_sparse_shard_is_refused_before_it_is_read(tmp_path: Path, fleet: Fleet, index: Index[Rec]) -> None:
    path = tmp_path / "fleet" / AT
    with path.open("r+b") as file:
        file.truncate(3 << 30)
    with pytest.raises(Corrupt, match="more than the 2,147,483,648"):
        [*index.scan()]
    assert kinds(index) == {"too_large"}
    index.put(Rec(MANY[0], "later"))
    with pytest.raises(Corrupt, match="more than the 2,147,483,648"):
        index.compile()


def test_put_many_never_writes_a_pack_that_no_reader_takes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.index.writer.PACK_BYTES", 1000)
    index = fleet.index(NAME, Rec, key="key")
    index.put_many([Rec(key, "x" * 300) for key in MANY])
    sizes = [stat.size for stat in fleet.store.list(KEYS.packs)]
    assert len(sizes) > 10
    assert max(sizes) <= 1000
    assert len(index.get_many(MANY)) == 40


# ---- going on with what is left ----


def _missing(fleet: Fleet) -> None:
    fleet.store.delete(AT)


def _cut_off(fleet: Fleet) -> None:
    spoil(fleet, lambda data: data[:-20])


def _bad_line(fleet: Fleet) -> None:
    spoil(fleet, lambda data: data.replace(b"\x1f0\n", b"\x1f7\n", 2))


DAMAGES: dict[str, tuple[Callable[[Fleet], None], str, int]] = {
    "missing": (_missing, "missing_shard", 0),
    "emptied": (lambda fleet: spoil(fleet, lambda data: b""), "lost", 0),
    "cut in half": (lambda fleet: spoil(fleet, _cut), "lost", 20),
    "cut off": (_cut_off, "cut_off", 39),
    "bad lines": (_bad_line, "bad_line", 38),
    "changed": (lambda fleet: spoil(fleet, _changed), "changed", 40),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_loss_is_accepted_only_when_somebody_says_so(fleet: Fleet, index: Index[Rec], damage: str) -> None:
    """In 0.1 a lost shard blocked `sql` and `scan` of everything, for good."""
    spoils, kind, left = DAMAGES[damage]
    spoils(fleet)
    there = fleet.store.get(AT, size_max=None).data if damage != "missing" else b""
    assert kinds(index) == {kind}
    assert kind in {finding.kind for finding in index.verify(repair=True).findings if finding.wrong}
    assert objects(fleet.store, "quarantine") == [], "a repair papers over nothing"
    report = index.verify(accept_loss=True)
    [finding] = [each for each in report.findings if each.kind == kind]
    assert finding.repaired
    assert f"{left} records kept, {40 - left} lost" in finding.what
    [kept] = [
        read_quarantined(fleet.store.get(key, size_max=None).data, what=key)
        for key in objects(fleet.store, "quarantine")
    ]
    assert kept.key == AT
    assert "the loss was accepted" in kept.reason
    if there not in (b"", fleet.store.get(AT, size_max=None).data):
        assert b64decode(kept.data) == there
    for handle in (index, fleet.index(NAME, Rec, key="key")):
        assert len([*handle.scan()]) == 50 + left
        assert handle.sql(f"select count(*) from {NAME}")[0] == (50 + left,)
        assert len(handle.get_many(MANY)) == left
    assert index.verify().ok
    index.put(Rec(MANY[0], "again"))
    index.compile(full=True)
    assert index.get(MANY[0]).text == "again"  # type: ignore[union-attr]
    assert index.verify().ok


def test_what_waits_is_folded_after_a_loss_was_accepted(fleet: Fleet, index: Index[Rec]) -> None:
    spoil(fleet, lambda data: b"")
    index.put_many([Rec(key, "again") for key in MANY[:5]])
    with pytest.raises(Corrupt):
        index.compile()
    index.verify(accept_loss=True)
    index.compile(full=True)
    assert {record.key for record in index.scan() if record.text == "again"} == {*MANY[:5]}
    assert index.verify().ok


KILLED = """
import os, sys
import limpet
from limpet.kernel.store.directory import DirectoryStore
from support.index import NAME, Rec
at = int(sys.argv[2])
calls = 0
def dying(verb):
    real = getattr(DirectoryStore, verb)
    def call(self, key, *args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), 9)
        return real(self, key, *args, **kwargs)
    return call
fleet = limpet.open(sys.argv[1], durability="os")
index = fleet.index(NAME, Rec, key="key")
index.manifest
for verb in ("put", "delete"):
    setattr(DirectoryStore, verb, dying(verb))
index.verify(accept_loss=True)
"""


@pytest.mark.parametrize("damage", ["missing", "bad lines", "cut in half"])
def test_accepting_a_loss_can_be_killed_at_any_write(
    tmp_path: Path, fleet: Fleet, index: Index[Rec], damage: str
) -> None:
    """kill -9 before each write in turn: nothing that was left is lost, and doing it again completes it."""
    spoils, _, left = DAMAGES[damage]
    spoils(fleet)
    env = {"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin:/bin"}
    for number in range(1, 20):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "fleet"), str(number)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        lock = KEYS.lock("all")
        if lock in {stat.key for stat in fleet.store.list(KEYS.shards)}:
            fleet.store.delete(lock)  # as if its minute had passed
    else:
        pytest.fail("it never ends")
    assert number > 3
    fresh = fleet.index(NAME, Rec, key="key")
    assert len([*fresh.scan()]) == 50 + left
    assert fresh.verify().ok


def test_one_bad_line_is_named_in_plain_words(fleet: Fleet, index: Index[Rec]) -> None:
    """In 0.1 it said `5e.usv it: line 2`."""
    spoil(fleet, lambda data: data.replace(b"\x1f0\n", b"\x1f7\n", 1))
    [finding] = [each for each in index.verify().findings if each.wrong]
    assert finding.what.startswith("has a bad line: line 1 is not a record of this index: b'")
    fleet.store.put(AT, b"\xff\n")
    [finding] = [each for each in index.verify().findings if each.wrong]
    assert finding.what.startswith("is not UTF-8: ")


def test_the_only_errors_are_limpets_own(fleet: Fleet, index: Index[Rec]) -> None:
    """Whatever is in an object of an index, its readers raise errors of Limpet's, or answer."""
    rubbish = [
        *[b"", b"\n", b"\x1f\n", b"\x1f" * 5000 + b"\n", b"\\\n", b"\xff\xfe\n", b"a\x1f" * 20, b"\x00" * 100, b"{}"],
    ]
    places = [AT, KEYS.pack(SHARD, "x"), KEYS.single(SHARD, MANY[0], "2030-01-01T00:00:00.000000Z", "x"), KEYS.manifest]
    reads: list[Callable[[], object]] = [
        lambda: fleet.index(NAME, Rec, key="key").get(MANY[0]),
        lambda: fleet.index(NAME, Rec, key="key").get_many(MANY),
        lambda: [*fleet.index(NAME, Rec, key="key").scan()],
        lambda: fleet.index(NAME, Rec, key="key").sql(f"select * from {NAME}"),
        lambda: fleet.index(NAME, Rec, key="key").verify(),
        lambda: fleet.index(NAME, Rec, key="key").stats(),
        lambda: fleet.index(NAME, Rec, key="key").compile(full=True),
    ]
    for place in places:
        had = {stat.key for stat in fleet.store.list(KEYS.root)}
        before = fleet.store.get(place, size_max=None).data if place in had else None
        for data in rubbish:
            for read in reads:
                fleet.store.put(place, data)
                with suppress(LimpetError):
                    read()
        if before is None:
            fleet.store.delete(place)
        else:
            fleet.store.put(place, before)
    assert len([*fleet.index(NAME, Rec, key="key").scan()]) >= 90


# ---- leaving damaged shards out ----

SPOILERS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "emptied": lambda data: b"",
    "cut at a line end": _cut,
    "cut in a line": lambda data: data[:-9],
    "a bad line": lambda data: data.replace(b"x" * 100, b"\xff", 1),
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=[*SPOILERS])
def test_damaged_shards_can_be_left_out(
    fleet: Fleet, index: Index[Rec], spoil: Callable[[bytes], bytes | None]
) -> None:
    """Only if one asks for it, and not in silence; what waits for such a shard is left out as well."""
    data = spoil(fleet.store.get(AT).data)
    fleet.store.delete(AT)
    if data is not None:
        fleet.store.put(AT, data)
    index.put(Rec(MANY[0], "newer"))
    index.put(Rec(OTHERS[0], "newer"))
    query = f"select key, text from {NAME}"
    for ask in (lambda: [*index.scan()], lambda: [*index.sql(query)]):
        with pytest.raises(Corrupt):
            ask()
    with pytest.warns(DamagedShardWarning, match=rf"{AT} was left out \(it had 40 records\)") as warned:
        found = {record.key: record.text for record in index.scan(skip_damaged=True)}
    assert len(warned) == 1
    assert {*found} == {*OTHERS}
    assert found[OTHERS[0]] == "newer"
    with pytest.warns(DamagedShardWarning, match=rf"{AT} was left out"):
        assert dict(index.sql(query, skip_damaged=True)) == found
    left_out: list[DamagedShard] = []
    stream = BytesIO()
    [*export(index, stream, "jsonl", left_out.append)]
    assert stream.getvalue().count(b"\n") == len(OTHERS)
    assert [(each.key, each.records) for each in left_out] == [(AT, 40)]


def test_a_damaged_object_that_waits_can_be_left_out_with_its_shard(fleet: Fleet, index: Index[Rec]) -> None:
    fleet.store.put(KEYS.pack(SHARD, "01"), b"garbage")
    with pytest.raises(Corrupt):
        [*index.scan()]
    with pytest.warns(DamagedShardWarning, match="packs/3a"):
        assert {record.key for record in index.scan(skip_damaged=True)} == {*OTHERS}
    with pytest.warns(DamagedShardWarning, match="packs/3a"):
        assert len(index.sql(f"select key from {NAME}", skip_damaged=True)) == len(OTHERS)


def test_nothing_is_left_out_of_a_healthy_index(index: Index[Rec], recwarn: pytest.WarningsRecorder) -> None:
    index.put(Rec("waits"))
    assert len([*index.scan(skip_damaged=True)]) == len(MANY) + len(OTHERS) + 1
    assert len(index.sql(f"select key from {NAME}", skip_damaged=True)) == len(MANY) + len(OTHERS) + 1
    assert [str(each.message) for each in recwarn] == []


def test_a_store_that_does_not_answer_is_not_damage(fleet: Fleet, index: Index[Rec], tmp_path: Path) -> None:
    path = tmp_path / "fleet" / AT
    path.unlink()
    path.symlink_to(tmp_path)
    with pytest.raises(Denied):
        [*index.scan(skip_damaged=True)]


def test_an_older_single_counts_when_the_newest_went_to_quarantine_since_it_was_listed() -> None:
    """A reader lists two singles of a key; before it reads the newer one, a compiler has put that aside."""
    process = Process.start(MemoryStore(), Time(), "reader")
    process.index.put(Rec("a", "old"))
    process.index.put(Rec("a", "new"))
    older, newest = sorted(objects(process.bucket, "inbox"), key=single_stamp)

    def vanish(verb: str, key: str) -> None:
        if verb == "get" and key == newest:
            process.bucket.delete(newest)

    process.store.before = vanish
    assert process.index.get("a") == Rec("a", "old")
    process.bucket.put(newest, b"\xff\n")
    assert process.index.get_many(["a", "b"]) == {"a": Rec("a", "old")}
    assert objects(process.bucket, "inbox") == [older]
