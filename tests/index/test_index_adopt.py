"""`adopt`: plain files of other programs, one record each, and folders of them, become records of an index."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.app.adopt import adopt_files
from limpet.index import Index
from limpet.index.decide import shard_id
from limpet.index.maintain.import_existing import RECORD_FOLDERS, AdoptReport, import_existing
from limpet.index.maintain.verify import verify
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Denied, Invalid, LimpetError, Missing
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.store import MemoryStore
from limpet.kernel.store.sources import FileSource, FolderSource, StoreSource
from support.clock import ManualRuntime
from support.index import Killed, whole_of
from support.stores import Meddled

KEYS = IndexKeys.of("domains")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
US, RS = "\x1f", "\x1e"


@dataclass
class Domain:
    """Seed 001's columns."""

    domain: str
    company_name: str | None
    scraper_version: int | None
    updated_at: datetime | None = None


def plain(*fields: str, end: str = "\n") -> bytes:
    """A record as the seed's workers write it."""
    return (US.join(fields) + end).encode()


def seeded(domain: str, version: int = 1, at: str = "2026-01-02T03:04:05Z") -> bytes:
    """One good record."""
    return plain(domain, f"{domain} Inc", str(version), at)


def put(fleet: Fleet, name: str, data: bytes) -> None:
    """A plain file beside the manifest."""
    fleet.store.put(Key(f"{KEYS.root}/{name}"), data)


@pytest.fixture
def index(fleet: Fleet) -> Index[Domain]:
    """An empty index of the seed's columns."""
    index = fleet.index("domains", Domain, key="domain")
    assert index.manifest.depth == 2
    return index


@pytest.fixture
def near() -> Fleet:
    """A fleet in memory."""
    return limpet.open("memory://")


@pytest.fixture
def domains(near: Fleet) -> Index[Domain]:
    """The same index there."""
    index = near.index("domains", Domain, key="domain")
    assert index.manifest.depth == 2
    return index


def take(index: Index[Any], source: FileSource | None = None, *, quiesced: bool = False) -> AdoptReport:
    """Adopt into it."""
    return import_existing(whole_of(index), index._stamps, source, quiesced=quiesced)


def test_the_seed_s_own_layout(fleet: Fleet, index: Index[Domain]) -> None:
    names = [f"site{n}.com" for n in range(20)]
    for n, name in enumerate(names):
        put(fleet, f"{name}.usv", seeded(name, n))
    index.put(Domain("mine.com", None, None, AT))
    report = take(index)
    assert (report.files, report.records, report.deleted, report.bad) == (20, 20, 0, [])
    assert report.packs == len({shard_id(name) for name in names})
    wanted = {name: Domain(name, f"{name} Inc", n, AT) for n, name in enumerate(names)}
    assert index.get_many(names) == wanted
    index.compile(full=True)
    assert {record.domain: record for record in index.scan()} == wanted | {
        "mine.com": Domain("mine.com", None, None, AT)
    }
    assert {finding.kind for finding in verify(whole_of(index)).findings} == {"unknown"}
    gone = take(index, quiesced=True)
    assert (gone.files, gone.deleted) == (20, 20)
    assert verify(whole_of(index)).findings == []
    assert {record.domain for record in index.scan()} == {*names, "mine.com"}


def test_twice_changes_nothing(near: Fleet, domains: Index[Domain]) -> None:
    for n in range(5):
        put(near, f"site{n}.com.usv", seeded(f"site{n}.com", n)[: -1 if n % 2 else None])
    put(near, "old.com.usv", plain("old.com", "Old"))
    take(domains)
    domains.compile(full=True)
    shards = {stat.key: near.store.get(stat.key).data for stat in near.store.list(KEYS.shards)}
    shards = {key: data for key, data in shards.items() if key.endswith(".usv")}
    take(domains)
    domains.compile(full=True)
    assert {key: near.store.get(key).data for key in shards} == shards


def test_a_later_record_and_a_tombstone_stand(near: Fleet, domains: Index[Domain]) -> None:
    put(near, "a.com.usv", seeded("a.com", 1))
    put(near, "b.com.usv", seeded("b.com", 1))
    domains.put(Domain("a.com", "new", 2))
    domains.delete("b.com")
    assert take(domains).records == 2
    domains.compile(full=True)
    assert [(record.domain, record.company_name) for record in domains.scan()] == [("a.com", "new")]


GOOD: dict[str, tuple[bytes, Domain]] = {
    "as it is": (seeded("a.com"), Domain("a.com", "a.com Inc", 1, AT)),
    "no line feed": (seeded("a.com")[:-1], Domain("a.com", "a.com Inc", 1, AT)),
    "RS at the end": (plain("a.com", "A", "1", "2026-01-02T03:04:05Z", end=RS), Domain("a.com", "A", 1, AT)),
    "RS and LF": (plain("a.com", "A\nB", "1", "2026-01-02T03:04:05Z", end=RS + "\n"), Domain("a.com", "A\nB", 1, AT)),
    "CR and LF": (plain("a.com", "A", "1", "2026-01-02T03:04:05Z", end="\r\n"), Domain("a.com", "A", 1, AT)),
    "a mark of the byte order": (b"\xef\xbb\xbf" + seeded("a.com"), Domain("a.com", "a.com Inc", 1, AT)),
    "empty fields": (plain("a.com", "", "", "2026-01-02T03:04:05Z"), Domain("a.com", None, None, AT)),
    "a backslash": (plain("a.com", "\\N\\", "1", "2026-01-02T03:04:05Z"), Domain("a.com", "\\N\\", 1, AT)),
    "no zone": (plain("a.com", "A", "1", "2026-01-02T03:04:05"), Domain("a.com", "A", 1, AT)),
    "a blank": (plain("a.com", "A", " 1 ", "2026-01-02 03:04:05+00:00"), Domain("a.com", "A", 1, AT)),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_tolerated(near: Fleet, domains: Index[Domain], case: str) -> None:
    data, wanted = GOOD[case]
    put(near, "a.com.usv", data)
    assert take(domains).bad == []
    assert domains.get("a.com") == wanted


@pytest.mark.parametrize("fields", [("a.com",), ("a.com", "A"), ("a.com", "A", "1"), ("a.com", "A", "1", "")])
def test_without_a_time_that_of_the_file_counts(near: Fleet, domains: Index[Domain], fields: tuple[str, ...]) -> None:
    put(near, "a.com.usv", plain(*fields))
    take(domains)
    found = domains.get("a.com")
    assert found is not None
    assert found.updated_at == near.store.head(Key(f"{KEYS.root}/a.com.usv")).modified


BAD: dict[str, tuple[str, bytes, str]] = {
    "a header": ("a.com.usv", plain("domain", "company_name", "scraper_version") + seeded("a.com"), "header"),
    "two records": ("a.com.usv", seeded("a.com") + seeded("a.com"), "2 records"),
    "another key": ("a.com.usv", seeded("b.com"), "not that of its key 'b.com'"),
    "no key": ("a.com.usv", plain("", "A"), "empty"),
    "empty": ("a.com.usv", b"", "empty"),
    "too many fields": ("a.com.usv", plain("a.com", "A", "1", "2026-01-02T03:04:05Z", "x"), "5 fields"),
    "a bad integer": ("a.com.usv", plain("a.com", "A", "one"), "'scraper_version'"),
    "a bad time": ("a.com.usv", plain("a.com", "A", "1", "yesterday"), "'updated_at'"),
    "the future": ("a.com.usv", seeded("a.com", 1, "2999-01-01T00:00:00Z"), "ahead"),
    "not UTF-8": ("a.com.usv", b"a.com\x1f\xff\n", "UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_reported_and_kept_and_the_rest_goes_on(near: Fleet, domains: Index[Domain], case: str) -> None:
    name, data, said = BAD[case]
    put(near, name, data)
    put(near, "good.com.usv", seeded("good.com"))
    report = take(domains, quiesced=True)
    [bad] = report.bad
    assert bad.name == name
    assert said in bad.reason
    assert (report.files, report.deleted) == (1, 1)
    assert near.store.get(Key(f"{KEYS.root}/{name}")).data == data
    assert [record.domain for record in domains.scan()] == ["good.com"]


def test_other_files_and_folders_are_left_alone(near: Fleet, domains: Index[Domain]) -> None:
    """What lies in folders of the index is its own."""
    domains.put(Domain("mine.com", "x", 1))
    domains.compile(full=True)
    domains.put_many([Domain(f"w{n}.com", "x", 1) for n in range(20)])
    for name in ("a.com.usv", "notes.txt", "inbox0.usv", "zz.com.usv"):
        put(near, name, seeded(name.removesuffix(".usv")))
    before = {stat.key for stat in near.store.list(KEYS.root)}
    report = take(domains, quiesced=True)
    assert (report.files, report.ignored, report.ignored_names, report.bad) == (3, 1, ["notes.txt"], [])
    after = {stat.key for stat in near.store.list(KEYS.root)}
    assert before - after == {f"{KEYS.root}/{name}" for name in ("a.com.usv", "inbox0.usv", "zz.com.usv")}


def test_a_folder_with_names_that_no_store_would_have(tmp_path: Path, domains: Index[Domain]) -> None:
    folder = tmp_path / "domains"
    (folder / "shards").mkdir(parents=True)
    (folder / "deeper").mkdir()
    names = ["Example.COM", "a b.com", "é.com", "x%2Fy", "=61.com"]
    for name in names:
        (folder / f"{name}.usv").write_bytes(seeded("x/y" if name == "x%2Fy" else name))
    (folder / "deeper" / "no.com.usv").write_bytes(seeded("no.com"))
    (folder / "link.com.usv").symlink_to(folder / "deeper" / "no.com.usv")
    many = b"".join(seeded(f"s{n}.com", n) for n in range(30)).replace(b"\n", RS.encode())
    (folder / "shards" / "5e.usv").write_bytes(many)
    (folder / "shards" / "5e.lock").write_text("{}")
    (folder / "datapackage.json").write_text("{}")
    report = take(domains, FolderSource(folder, RECORD_FOLDERS))
    assert (report.files, report.records, report.locks) == (6, 35, 1)
    assert (report.ignored, report.ignored_names) == (2, ["deeper/no.com.usv", "datapackage.json"])
    assert [bad.name for bad in report.bad] == ["link.com.usv"]
    wanted = {"Example.COM", "a b.com", "é.com", "x/y", "=61.com", *(f"s{n}.com" for n in range(30))}
    assert {record.domain for record in domains.scan()} == wanted
    left = sorted(path.name for path in folder.rglob("*.usv"))
    assert take(domains, FolderSource(folder, RECORD_FOLDERS), quiesced=True).deleted == 6 + 1, "the lock goes too"
    assert sorted(path.name for path in folder.rglob("*.usv")) == ["link.com.usv", "no.com.usv"]
    assert len(left) == 8
    assert {record.domain for record in domains.scan()} == wanted


def test_the_time_of_a_file_in_a_folder(tmp_path: Path, domains: Index[Domain]) -> None:
    (tmp_path / "a.com.usv").write_bytes(plain("a.com"))
    os.utime(tmp_path / "a.com.usv", (AT.timestamp(), AT.timestamp()))
    take(domains, FolderSource(tmp_path, RECORD_FOLDERS))
    found = domains.get("a.com")
    assert found is not None
    assert found.updated_at == AT


def test_a_prefix_of_another_store(fleet: Fleet, domains: Index[Domain]) -> None:
    fleet.store.put(Key("old/domains/a.com.usv"), seeded("a.com"))
    fleet.store.put(Key("old/domains/inbox/b.com.usv"), seeded("b.com"))
    fleet.store.put(Key("old/domains/manifest.json"), b'{"shards": 1}')
    fleet.store.put(Key("old/domains/shards/5e.usv"), seeded("c.com") + seeded("d.com"))
    fleet.store.put(Key("old/domains/shards/deeper/x.usv"), seeded("x.com"))
    fleet.store.put(Key("old/domains/zzz/a.usv"), seeded("e.com"))
    source = StoreSource(fleet.store, "old/domains", RECORD_FOLDERS)
    assert take(domains, source, quiesced=True).deleted == 2
    assert {record.domain for record in domains.scan()} == {"a.com", "c.com", "d.com"}
    assert len([*fleet.store.list("old/domains")]) == 4


def test_of_a_shard_all_or_nothing(tmp_path: Path, domains: Index[Domain]) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "5e.usv").write_bytes(seeded("a.com") + plain("b.com", "B", "x"))
    report = take(domains, FolderSource(tmp_path, RECORD_FOLDERS), quiesced=True)
    [bad] = report.bad
    assert bad.name == "shards/5e.usv"
    assert "record 2" in bad.reason
    assert [*domains.scan()] == []
    assert (tmp_path / "shards" / "5e.usv").exists()


def test_the_newest_of_several_wins(tmp_path: Path, domains: Index[Domain]) -> None:
    (tmp_path / "shards").mkdir()
    newer = seeded("a.com", 2, "2026-02-01T00:00:00Z")
    (tmp_path / "shards" / "5e.usv").write_bytes(seeded("a.com", 1) + newer + seeded("a.com", 3))
    (tmp_path / "a.com.usv").write_bytes(seeded("a.com", 4))
    take(domains, FolderSource(tmp_path, RECORD_FOLDERS))
    found = domains.get("a.com")
    assert found is not None
    assert found.scraper_version == 2


def test_shards_of_our_own_are_refused(near: Fleet, domains: Index[Domain]) -> None:
    domains.put(Domain("a.com", "A", 1))
    domains.compile(full=True)
    other = limpet.open("memory://").index("other", Domain, key="domain")
    assert other.manifest.depth == 2
    with pytest.raises(Invalid, match="an index of Limpet") as error:
        take(other, StoreSource(near.store, KEYS.root, RECORD_FOLDERS), quiesced=True)
    assert "export" in error.value.hint
    assert [*other.scan()] == []


def test_no_folder_and_no_index(tmp_path: Path, near: Fleet, domains: Index[Domain]) -> None:
    with pytest.raises(Missing, match="no folder"):
        take(domains, FolderSource(tmp_path / "nowhere", RECORD_FOLDERS))
    with pytest.raises(Missing, match="no index"):
        take(near.index("nowhere"))


def test_large_takes_are_put_in_parts(tmp_path: Path, domains: Index[Domain], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded; each part is durable before its files go."""
    monkeypatch.setattr("limpet.index.maintain.import_existing.PACKS_BYTES", 2000)
    for n in range(600):
        (tmp_path / f"s{n}.com.usv").write_bytes(seeded(f"s{n}.com", n))
    report = take(domains, FolderSource(tmp_path, RECORD_FOLDERS), quiesced=True)
    assert (report.files, report.deleted) == (600, 600)
    assert report.packs > len({shard_id(f"s{n}.com") for n in range(600)})
    assert len([*domains.scan()]) == 600


def test_cost(near: Fleet, domains: Index[Domain]) -> None:
    names = [f"site{n}.com" for n in range(300)]
    for name in names:
        put(near, f"{name}.usv", seeded(name))
    domains.put(Domain("clock.com", None, None))
    domains.compile(full=True)
    shards = len({shard_id(name) for name in names})
    with near.meter.measure() as cost:
        take(domains, quiesced=True)
    # one LIST for each folder that is jumped over, and the first
    assert cost.requests == {"get": 301, "put": shards, "delete": 300, "list": 2}


class Refusing:
    """A source whose files cannot be deleted."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self.files = source.files
        self.read = source.read
        self.name_of = source.name_of
        self.prune = source.prune

    def delete(self, names: Any) -> dict[str, LimpetError | None]:
        """See `FileSource.delete`."""
        return {name: Denied("no") for name in names}


def test_what_cannot_be_deleted_is_reported(tmp_path: Path, domains: Index[Domain]) -> None:
    (tmp_path / "a.com.usv").write_bytes(seeded("a.com"))
    report = take(domains, Refusing(FolderSource(tmp_path, RECORD_FOLDERS)), quiesced=True)
    assert (report.files, report.deleted) == (1, 0)
    [bad] = report.bad
    assert "not deleted" in bad.reason
    assert domains.get("a.com") is not None


def test_a_crash_at_any_write_loses_nothing() -> None:
    """Whatever is deleted is in the index by then; the next run takes in the rest."""
    names = [f"site{n}.com" for n in range(12)]
    died = 0
    for number in count(1):
        bucket = MemoryStore(ManualRuntime())
        index = _opened(bucket, lambda verb: None)
        for name in names:
            bucket.put(Key(f"{KEYS.root}/{name}.usv"), seeded(name))
        left = [number]

        def die(verb: str, left: list[int] = left) -> None:
            left[0] -= verb in ("put", "delete")
            if left[0] <= 0:
                raise Killed

        try:
            take(_opened(bucket, die), quiesced=True)
        except Killed:
            died += 1
            there = {stat.key for stat in bucket.list(KEYS.root)}
            gone = {name for name in names if f"{KEYS.root}/{name}.usv" not in there}
            assert gone <= {record.domain for record in index.scan()}
        else:
            break
        take(_opened(bucket, lambda verb: None), quiesced=True)
        assert {record.domain for record in index.scan()} == {*names}
        assert verify(whole_of(index)).findings == []
    assert died > len(names)


def _opened(bucket: MemoryStore, before: Callable[[str], None], *, load: bool = True) -> Index[Any]:
    runtime = ManualRuntime(owner=f"p{len([*bucket.list()])}")
    runtime.wall_offset_s = timedelta(days=200).total_seconds()
    store = Meddled(bucket, runtime)
    store.before = lambda verb, key: before(verb)
    from limpet.index.types import typed
    from limpet.index.writer import stamps_of
    from limpet.kernel.lease import VersionWatch

    index: Index[Any] = Index(
        store, "domains", runtime, typed(Domain, "domain"), stamps_of(store, runtime, "memory"), VersionWatch(runtime)
    )
    assert not load or index.manifest.depth == 2
    return index


def test_empty_shards_are_fine_and_an_inbox_by_shards_is_taken_in(
    near: Fleet, domains: Index[Domain], tmp_path: Path
) -> None:
    """In 0.1 empty shards were called bad, and `inbox/<xx>/*.usv` was passed over without a word."""
    files = {
        "shards/00.usv": b"",
        "shards/01.usv": seeded("b.com"),
        "inbox/3a/a.com.usv": seeded("a.com"),
        "inbox/3b/wrong.com.usv": seeded("c.com"),
    }
    for name, data in files.items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_bytes(data)
        near.store.put(Key(f"old/{name}"), data)
    for source in (FolderSource(tmp_path / "old", RECORD_FOLDERS), StoreSource(near.store, "old", RECORD_FOLDERS)):
        report = take(domains, source)
        assert (report.files, report.records) == (3, 2)
        assert [bad.name for bad in report.bad] == ["inbox/3b/wrong.com.usv"]
    assert {record.domain for record in domains.scan()} == {"a.com", "b.com"}


# ---- in place ----


def lay_out(put: Callable[[str, bytes], object]) -> dict[str, bytes]:
    """A folder of another program: shards of our names in any order, an inbox by shards and one of plain files."""
    names = [f"site{n}.com" for n in range(40)]
    files = {"datapackage.json": b'{"name": "theirs", "resources": []}', "shards/00.usv": b"", "inbox.com.usv": b""}
    for name in reversed(names[:30]):
        at = f"shards/{shard_id(name)}.usv"
        files[at] = files.get(at, b"") + seeded(name)
    for name in names[30:]:
        files[f"inbox/{shard_id(name)}/{name}.usv"] = seeded(name)
    files |= {"inbox.com.usv": seeded("inbox.com", 7), "notes.txt": b"mine", "shards/datapackage.json": b"{}"}
    files |= {"manifest.json": b'{"site0.com": "5e"}', "manifest.usv": plain("site0.com", "5e") * 2}
    files |= {"shards/5e.lock": b'{"worker_id": "pi", "expires_at": "2026-01-01T00:05:00Z"}'}
    for name, data in files.items():
        put(name, data)
    return files


WANTED = {*(f"site{n}.com" for n in range(40)), "inbox.com"}


def under(store: Any, prefix: str) -> dict[str, bytes]:
    """What lies below a prefix, by name."""
    return {stat.key[len(prefix) + 1 :]: store.get(stat.key).data for stat in store.list(prefix)}


def test_a_folder_of_shards_becomes_an_index_where_it_is(fleet: Fleet) -> None:
    """In 0.1 the way was to move the folder elsewhere, create the index and adopt from there."""
    files = lay_out(lambda name, data: put(fleet, name, data))
    index = fleet.index("domains", Domain, key="domain")
    with pytest.raises(Invalid, match="another program") as refused:
        index.adopt_in_place()
    assert "--quiesced" in refused.value.hint
    assert under(fleet.store, KEYS.root) == files, "nothing was written"
    report = index.adopt_in_place(quiesced=True)
    moved = {name for name in files if name not in ("datapackage.json", "notes.txt") and files[name]}
    assert (report.created, report.moved, report.records, report.bad) == (True, len(moved), 41, [])
    assert (report.locks, report.ignored, report.ignored_names) == (1, 1, ["notes.txt"])
    kept = under(fleet.store, KEYS.adopted)
    assert kept.pop("about.txt").startswith(b"Files of another program")
    assert kept == {name: data for name, data in files.items() if name in moved or name == "datapackage.json"}
    assert under(fleet.store, KEYS.root)["notes.txt"] == files["notes.txt"], "what is no record file stays"
    assert {record.domain for record in index.scan()} == WANTED
    index.compile(full=True)
    assert {record.domain for record in index.scan()} == WANTED
    assert {finding.key for finding in verify(whole_of(index)).findings} == {f"{KEYS.root}/notes.txt"}
    with pytest.raises(Invalid, match="already"):
        index.adopt_in_place(quiesced=True)


def test_in_place_one_bad_file_and_nothing_is_changed() -> None:
    fleet = limpet.open("memory://")
    files = lay_out(lambda name, data: put(fleet, name, data))
    files["shards/ff.usv"] = plain("x.com", "X", "many")
    put(fleet, "shards/ff.usv", files["shards/ff.usv"])
    report = fleet.index("domains", Domain, key="domain").adopt_in_place(quiesced=True)
    assert not report.created
    assert [bad.name for bad in report.bad] == ["shards/ff.usv"]
    assert under(fleet.store, KEYS.root) == files


def test_in_place_an_index_of_our_own_without_its_manifest_is_left_alone(near: Fleet, domains: Index[Domain]) -> None:
    domains.put_many([Domain(f"site{n}.com", None, n) for n in range(900)])
    domains.compile(full=True)
    domains.put_many([Domain(f"more{n}.com", None, n) for n in range(900)])
    near.store.delete(KEYS.manifest)
    before = under(near.store, KEYS.root)
    with pytest.raises(Corrupt, match="an index of Limpet"):
        near.index("domains", Domain, key="domain").adopt_in_place(quiesced=True)
    near.store.delete_many([stat.key for stat in near.store.list(KEYS.packs)])
    report = near.index("domains", Domain, key="domain").adopt_in_place(quiesced=True)
    assert report.bad, "its lines have a field more"
    assert {name: data for name, data in before.items() if not name.startswith("packs/")} == under(
        near.store, KEYS.root
    )


def test_in_place_a_crash_at_any_write_loses_nothing() -> None:
    """Whatever was written before the crash, no index is there before it has every record."""
    total, _, _ = _adopt_until(10**6)
    steps = [*range(1, 130, 3), *range(130, total - 5, 60), *range(total - 5, total)]
    for number in steps:
        wrote, bucket, files = _adopt_until(number)
        assert wrote == number
        there = under(bucket, KEYS.root)
        assert all(there.get(name) == data or there.get(f"adopted/{name}") == data for name, data in files.items())
        if records.is_foreign(there.get("manifest.json", b"{ }")) or "manifest.json" not in there:
            assert _opened(bucket, lambda verb: None, load=False).adopt_in_place(quiesced=True).created
        index = _opened(bucket, lambda verb: None, load=False)
        assert {record.domain for record in index.scan()} == WANTED


def _adopt_until(number: int) -> tuple[int, MemoryStore, dict[str, bytes]]:
    """Adopt in place, killed at that write; how many there were, and what was there before."""
    bucket = MemoryStore(ManualRuntime())
    files = lay_out(lambda name, data: bucket.put(Key(f"{KEYS.root}/{name}"), data))
    wrote = 0

    def die(verb: str) -> None:
        nonlocal wrote
        wrote += verb in ("put", "delete")
        if wrote >= number:
            raise Killed

    with suppress(Killed):
        _opened(bucket, die, load=False).adopt_in_place(quiesced=True)
    return wrote, bucket, files


def test_a_file_that_is_not_named_by_its_key_is_taken_by_it_if_that_is_said(fleet: Fleet) -> None:
    put(fleet, "a.com.usv", seeded("a.com"))
    put(fleet, "www-b.usv", seeded("b.com"))
    index = fleet.index("domains", Domain, key="domain")
    refused = index.adopt_in_place(quiesced=True)
    assert not refused.created
    [bad] = refused.bad
    assert bad.name == "www-b.usv"
    assert "--any-name" in bad.reason
    assert index.adopt_in_place(quiesced=True, any_name=True).created
    put(fleet, "www-c.usv", seeded("c.com"))
    assert len(take(index).bad) == 1
    assert import_existing(whole_of(index), index._stamps, any_name=True).records == 1
    assert {record.domain for record in index.scan()} == {"a.com", "b.com", "c.com"}


def test_a_manifest_of_limpet_that_cannot_be_read_is_no_other_program_s() -> None:
    """It is not replaced: that would forget the index."""
    fleet = limpet.open("memory://")
    assert fleet.index("domains", Domain, key="domain").manifest.depth == 2
    data = fleet.store.get(KEYS.manifest).data
    for rotten in (data[:-9], data.replace(b'"fields"', b'"felds"'), b"", b"[]"):
        fleet.store.put(KEYS.manifest, rotten)
        put(fleet, "a.com.usv", seeded("a.com"))
        with pytest.raises(Corrupt) as error:
            adopt_files(fleet, "domains", None, None, None, quiesced=True)
        assert "restore it from a backup" in error.value.hint
        assert fleet.store.get(KEYS.manifest).data == rotten


def test_an_old_manifest_names_adopt_wherever_the_index_is_used() -> None:
    fleet = limpet.open("memory://")
    put(fleet, "manifest.json", b'{"a.com": "5e"}')
    put(fleet, "a.com.usv", seeded("a.com"))
    with pytest.raises(Corrupt) as error:
        fleet.index("domains").get("a.com")
    assert "`limpet index adopt domains --quiesced`" in error.value.hint


def test_the_index_of_the_document_is_adopted_by_its_name_and_from_elsewhere(fleet: Fleet) -> None:
    """Shards, an inbox, a lock, a manifest and a sidecar, as the documents describe them; then a second run adds."""
    names = {"domain": "string", "company_name": "string", "scraper_version": "integer", "updated_at": "datetime"}
    schema = {"fields": [{"name": name, "type": kind} for name, kind in names.items()]}
    package = {"name": "domain-index", "resources": [{"name": "shards", "path": "shards/*.usv", "schema": schema}]}
    for at in (KEYS.root, "elsewhere"):
        for name, data in {
            "datapackage.json": msgspec.json.encode(package),
            "manifest.json": b'{"shards": {"5e": 1}}',
            "shards/5e.usv": seeded("a.com", 1) + seeded(f"{at}.com"),
            "shards/5e.lock": b'{"worker_id": "pi", "created_at": "x", "expires_at": "2026-01-01T00:05:00Z"}',
            "a.com.usv": seeded("a.com", 2, "2026-02-01T00:00:00Z"),
        }.items():
            fleet.store.put(Key(f"{at}/{name}"), data)
    report, in_place = adopt_files(fleet, "domains", None, None, "domain", quiesced=True)
    assert (in_place, report.created, report.records, report.locks, report.moved) == (True, True, 3, 1, 4)
    index: Index[Any] = fleet.index("domains")
    source = StoreSource(fleet.store, "elsewhere", RECORD_FOLDERS)
    first = index.adopt(source)
    assert (first.records, first.locks, first.deleted, first.bad) == (3, 1, 0, [])
    assert first.ignored_names == ["datapackage.json", "manifest.json"]
    assert index.adopt(source, quiesced=True).deleted == 3
    assert [stat.key for stat in fleet.store.list("elsewhere")] == [
        "elsewhere/datapackage.json",
        "elsewhere/manifest.json",
    ]
    index.compile(full=True)
    assert {record["domain"]: record["scraper_version"] for record in index.scan()} == {
        "a.com": 2,
        "elsewhere.com": 1,
        f"{KEYS.root}.com": 1,
    }
    assert verify(whole_of(index)).ok
