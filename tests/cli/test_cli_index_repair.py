"""`limpet index verify | adopt | reshard | purge`: what they say, what they do, and what a typo does not."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

import limpet
from cli.harness import Here
from limpet.index import Index, shard_id
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import system

KEYS = IndexKeys.of("domains")
US = "\x1f"

COMMANDS = [
    ("verify", "domains"),
    ("verify", "domains", "--repair"),
    ("adopt", "domains"),
    ("reshard", "domains", "--depth", "3", "--quiesced"),
    ("purge", "domains", "--quiesced"),
]


@dataclass
class Domain:
    """Seed 001's columns."""

    domain: str
    company_name: str | None = None
    scraper_version: int | None = None
    updated_at: datetime | None = None


@pytest.fixture(autouse=True)
def _fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in memory, which commands and tests find without a URL."""
    monkeypatch.setenv("LIMPET_URL", f"memory://{system().new_id()}")


@pytest.fixture
def index() -> Index[Domain]:
    """Three records and a tombstone, compiled, and a record that waits."""
    index = limpet.open().index("domains", Domain, key="domain")
    index.put_many([Domain(f"{name}.com") for name in "abcd"])
    index.delete("d.com")
    index.compile(full=True)
    index.put(Domain("e.com"))
    return index


def _run(here: Here, *arguments: str) -> str:
    done = here("index", *arguments)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def _reversed(shard: str) -> Key:
    """Put the two records of a shard in the wrong order."""
    store, key = limpet.open().store, KEYS.shard(shard)
    lines = store.get(key).data.splitlines(keepends=True)
    assert len(lines) == 2
    store.put(key, b"".join(reversed(lines)))
    return key


def _two_in_one_shard(index: Index[Domain]) -> str:
    found: dict[str, list[str]] = {}
    for n in range(1000):
        same = found.setdefault(shard_id(f"n{n}"), [])
        same.append(f"n{n}")
        if len(same) == 2 and shard_id(same[0]) not in {shard_id(f"{name}.com") for name in "abcde"}:
            index.put_many([Domain(name) for name in same])
            index.compile(full=True)
            return shard_id(same[0])
    raise AssertionError


def test_verify_of_what_is_in_order(here: Here, index: Index[Domain]) -> None:
    said = _run(here, "verify", "domains")
    assert said == "'domains' is in order: 256 shards, 3 records, 1 tombstone; 1 object to be compiled\n"
    told = json.loads(_run(here, "verify", "domains", "--json"))
    assert (told["ok"], told["findings"], told["shards"], told["waiting"]) == (True, [], 256, 1)


def test_verify_and_repair(here: Here, index: Index[Domain]) -> None:
    key = _reversed(_two_in_one_shard(index))
    done = here("index", "verify", "domains")
    assert done.code == 1
    assert done.out.splitlines()[0] == f"wrong order: {key} is out of order at line 2"
    assert done.out.splitlines()[1].startswith("1 thing is wrong with 'domains': 256 shards")
    assert done.err == "hint: `limpet index verify --repair` repairs it\n"
    said = _run(here, "verify", "domains", "--repair").splitlines()
    assert said[0] == f"repaired order: {key} is out of order at line 2"
    assert said[1].startswith("'domains' is in order")
    assert _run(here, "verify", "domains").startswith("'domains' is in order")


def test_verify_in_json(here: Here, index: Index[Domain]) -> None:
    limpet.open().store.delete(KEYS.shard("00"))
    done = here("index", "verify", "domains", "--repair", "--json")
    told = json.loads(done.out)
    assert (done.code, done.err, told["ok"]) == (1, "", False)
    [finding] = told["findings"]
    assert (finding["kind"], finding["key"]) == ("missing_shard", KEYS.shard("00"))
    assert (finding["wrong"], finding["repaired"]) == (True, False)
    assert "backup" in finding["hint"]


def test_a_note_is_not_wrong(here: Here, index: Index[Domain]) -> None:
    limpet.open().store.put(KEYS.pack("00", "bad"), b"oops\x1b[31m\n")
    index.compile(full=True)
    said = _run(here, "verify", "domains")
    assert said.startswith("note quarantined: ")
    assert "\x1b" not in said


def _plain(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.usv").write_text(US.join((name, "X Inc", "7", "2026-01-02T03:04:05Z")))


def test_adopt_a_folder(here: Here, index: Index[Domain], tmp_path: Path) -> None:
    _plain(tmp_path / "old", "Odd Name.com", "y.com")
    said = _run(here, "adopt", "domains", "--from", "old")
    assert said == "imported 2 records of 2 files into 'domains'; the originals stay\n"
    found = index.get("Odd Name.com")
    assert found is not None
    assert found.scraper_version == 7
    (tmp_path / "old" / "bad.com.usv").write_text("other.com")
    done = here("index", "adopt", "domains", "--from", "old", "--quiesced")
    assert done.code == 1
    assert done.out == "imported 2 records of 2 files into 'domains'; 2 originals deleted; 1 file is bad\n"
    assert done.err.startswith("not imported: bad.com.usv: its name is not that of its key 'other.com'")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["bad.com.usv"]


def test_adopt_from_a_url(here: Here, index: Index[Domain], tmp_path: Path) -> None:
    at = f"memory://{system().new_id()}"
    limpet.open(at).store.put(Key("x.com.usv"), b"x.com")
    told = json.loads(_run(here, "adopt", "domains", "--from", at, "--json"))
    assert (told["index"], told["files"], told["records"], told["deleted"], told["bad"]) == ("domains", 1, 1, 0, [])
    assert index.get("x.com") is not None
    _plain(tmp_path / "a b", "z.com")
    _run(here, "adopt", "domains", "--from", (tmp_path / "a b").as_uri())
    assert index.get("z.com") is not None


def test_adopt_what_lies_beside_the_index(here: Here, index: Index[Domain]) -> None:
    limpet.open().store.put(Key(f"{KEYS.root}/x.com.usv"), b"x.com")
    assert here("index", "verify", "domains").code == 1
    assert _run(here, "adopt", "domains", "--quiesced").endswith("1 original deleted\n")
    assert index.get("x.com") is not None
    _run(here, "verify", "domains")


def test_adopt_in_a_directory_whatever_the_names(here: Here, tmp_path: Path) -> None:
    """The store does not see a name that it would not write; the seed's programs write it all the same."""
    at = str(tmp_path / "fleet")
    index = limpet.open(at).index("domains", Domain, key="domain")
    index.put(Domain("a.com"))
    index.compile(full=True)
    _plain(tmp_path / "fleet" / "indexes" / "domains", "Example.COM", "b.com")
    said = _run(here, "adopt", "domains", "--quiesced", "-u", at)
    assert said == "imported 2 records of 2 files into 'domains'; 2 originals deleted\n"
    assert {record.domain for record in index.scan()} == {"a.com", "b.com", "Example.COM"}


def test_a_name_that_is_no_text(here: Here, index: Index[Domain], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with open(os.fsencode(tmp_path / "old") + b"/\xff\x1b.usv", "wb") as file:
        file.write(b"x.com")
    done = here("index", "adopt", "domains", "--from", "old")
    assert done.code == 1
    assert "\x1b" not in done.err
    assert json.loads(here("index", "adopt", "domains", "--from", "old", "--json").out)["files"] == 0


def test_reshard(here: Here, index: Index[Domain]) -> None:
    refused = here("index", "reshard", "domains", "--depth", "3")
    assert refused.code == 2
    assert refused.err.startswith(
        "limpet: reshard requires that no other process uses the index\nhint: stop everything"
    )
    said = _run(here, "reshard", "domains", "--depth", "3", "--quiesced")
    assert said == "'domains' has 4,096 shards of depth 3 now (it was 2), with 5 records, tombstones included\n"
    again = _run(here, "reshard", "domains", "--depth", "3", "--quiesced")
    assert again == "'domains' has depth 3 already; 0 objects of another depth removed\n"
    told = json.loads(_run(here, "reshard", "domains", "--depth", "2", "--quiesced", "--json"))
    assert (told["before"], told["depth"], told["records"]) == (3, 2, 5)
    fresh = limpet.open().index("domains", Domain, key="domain")
    assert {record.domain for record in fresh.scan()} == {f"{name}.com" for name in "abce"}
    assert here("index", "reshard", "domains", "--depth", "9", "--quiesced").code == 2


def test_purge(here: Here, index: Index[Domain]) -> None:
    refused = here("index", "purge", "domains")
    assert refused.code == 2
    assert "--quiesced" in refused.err
    said = _run(here, "purge", "domains", "--older-than", "30d", "--quiesced")
    assert said == "0 tombstones dropped from 0 shards of 'domains'; 1 are younger and stay\n"
    assert _run(here, "purge", "domains", "--quiesced") == "1 tombstone dropped from 1 shard of 'domains'\n"
    told = json.loads(_run(here, "purge", "domains", "--quiesced", "--json"))
    assert told == {"index": "domains", "dropped": 0, "kept": 0, "shards": 0, "written_bytes": 0}
    assert here("index", "purge", "domains", "--quiesced", "--older-than", "30").code == 2
    assert {record.domain for record in index.scan()} == {f"{name}.com" for name in "abce"}


@pytest.mark.parametrize("arguments", [command for command in COMMANDS if command[-1] in ("--repair", "--quiesced")])
def test_somebody_at_work(here: Here, index: Index[Domain], arguments: tuple[str, ...]) -> None:
    key = KEYS.lock("all")
    lock = Lock(limpet.open().store, key, key, 60.0, system(), VersionWatch(system()))
    with lock.hold(wait_s=0):
        done = here("index", *arguments)
    assert done.code == 75
    assert "hint: another repair, reshard or purge" in done.err


@pytest.mark.parametrize("arguments", COMMANDS)
def test_an_index_that_is_not_there(here: Here, arguments: tuple[str, ...]) -> None:
    fleet = limpet.open()
    before = {stat.key for stat in fleet.store.list()}
    done = here("index", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: there is no index 'domains' at memory://")
    assert {stat.key for stat in fleet.store.list()} == before


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_fleet_that_is_not_there(here: Here, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = here("index", *arguments, "-u", str(tmp_path / "nowhere"))
    assert done.code == 1
    assert "no fleet" in done.err
    assert not (tmp_path / "nowhere").exists()


def test_a_loss_is_accepted_by_an_option_only(here: Here, index: Index[Domain]) -> None:
    """In 0.1, after a shard was lost, `sql` and `export` of everything failed for good."""
    shard = KEYS.shard(shard_id("a.com"))
    limpet.open().store.delete(shard)
    export = ("index", "export", "domains", "-", "--format", "csv")
    assert here(*export).code == 1
    done = here("index", "verify", "domains", "--repair")
    assert (done.code, "--accept-loss" in done.err) == (1, True)
    assert here(*export).code == 1
    done = here("index", "verify", "domains", "--accept-loss")
    assert done.code == 0
    assert "accepted: 0 records kept, 1 lost" in done.out
    assert "b.com" in here(*export).out
    assert "a.com" not in here(*export).out
    assert here("index", "compile", "domains").code == 0
    assert here("index", "verify", "domains").code == 0


def test_a_shard_that_was_emptied_is_an_error_of_every_command(here: Here, index: Index[Domain]) -> None:
    """F23: in 0.1 `get` said "no record", `export` and `sql` ended with 0."""
    limpet.open().store.put(KEYS.shard(shard_id("a.com")), b"")
    for command in (
        ("get", "domains", "a.com"),
        ("export", "domains", "-", "--format", "csv"),
        ("sql", "select count(*) from domains"),
        ("verify", "domains"),
    ):
        done = here("index", *command)
        assert done.code == 1, command
        assert "had 1 before" in done.out + done.err, command


def test_an_index_without_its_manifest_is_not_said_to_be_missing(here: Here, index: Index[Domain]) -> None:
    """In 0.1 it said "no index 'domains'; did you mean 'domains'?"."""
    limpet.open().store.delete(KEYS.manifest)
    done = here("index", "get", "domains", "a.com")
    assert done.code == 1
    assert "the index 'domains' at" in done.err
    assert "has no manifest" in done.err
    assert "restore indexes/domains/manifest.json from a backup" in done.err


def test_a_compile_that_is_refused_does_not_say_that_there_is_no_index(here: Here, index: Index[Domain]) -> None:
    index.put(Domain("a.com"))
    limpet.open().store.put(KEYS.shard(shard_id("a.com")), b"")
    done = here("index", "compile", "domains")
    assert (done.code, done.out) == (1, "")
    assert "some are lost" in done.err


def test_adopt_in_place(here: Here, tmp_path: Path) -> None:
    """`index create` says what to run, and that makes an index of the folder as it is."""
    fleet = limpet.open("fleet", durability="os")
    root = tmp_path / "fleet/indexes/sites"
    (root / "shards").mkdir(parents=True)
    (root / "inbox/3a").mkdir(parents=True)
    (root / "shards/5e.usv").write_bytes(b"b.com\x1fB\na.com\x1fA\n")
    (root / "shards/5f.usv").write_bytes(b"")
    (root / "inbox/3a/C.com.usv").write_bytes(b"C.com\x1fC\n")
    assert fleet.store.get(limpet.kernel.keys.FLEET)
    fields = ("--field", "domain:string", "--field", "title:string?", "--key", "domain")
    refused = here("index", "create", "sites", *fields, "-u", "fleet")
    assert refused.code == 1
    assert "limpet index adopt sites --quiesced" in refused.err
    told = here("index", "adopt", "sites", "--quiesced", "-u", "fleet")
    assert (told.code, "--schema FILE" in told.err) == (2, True)
    (root / "datapackage.json").write_text('{"fields": [{"name": "domain", "type": "string"}, {"name": "title"}]}')
    told = here("index", "adopt", "sites", "--key", "domain", "-u", "fleet")
    assert (told.code, "--quiesced" in told.err) == (2, True)
    assert sorted(path.name for path in root.rglob("*.usv")) == ["5e.usv", "5f.usv", "C.com.usv"]
    assert "`limpet index adopt sites` makes one" in here("index", "get", "sites", "a.com", "-u", "fleet").err
    asked = here("index", "sql", "select * from sites", "-u", "fleet").err.splitlines()
    assert asked == ["limpet: there is no index 'sites'", "hint: there is no index yet"]
    missing = here("index", "adopt", "other", "--key", "domain", "-u", "fleet")
    assert (missing.code, "there are no files where it should be" in missing.err) == (1, True)
    done = here("index", "adopt", "sites", "--key", "domain", "--quiesced", "-u", "fleet")
    assert (done.code, done.err) == (0, "")
    assert "imported 3 records" in done.out
    assert "2 files moved to indexes/sites/adopted/" in done.out
    for key in ("a.com", "b.com", "C.com"):
        assert here("index", "get", "sites", key, "-u", "fleet").code == 0
    assert (root / "adopted/shards/5e.usv").read_bytes() == b"b.com\x1fB\na.com\x1fA\n"
    assert here("index", "verify", "sites", "-u", "fleet").out.startswith("'sites' is in order")
    again = here("index", "adopt", "sites", "-u", "fleet")
    assert (again.code, again.out) == (0, "imported 0 records of 0 files into 'sites'; the originals stay\n")
    assert here("index", "adopt", "sites", "--key", "domain", "-u", "fleet").code == 2


def test_files_of_the_original_layout_become_an_index_where_no_fleet_was(here: Here, tmp_path: Path) -> None:
    """As the document on the sharded index describes it: an inbox, shards, a sidecar, and a lock that was left."""
    domains = tmp_path / "old" / "indexes" / "domains"
    (domains / "shards").mkdir(parents=True)
    (domains / "shards" / "d6.usv").write_text("a.com\x1fA\x1f1\x1f2026-01-01T00:00:00Z\n")
    (domains / "a.com.usv").write_text("a.com\x1fNew\x1f9\x1f2026-02-01T00:00:00Z\n")
    (domains / "c.com.usv").write_text("c.com\x1fC\x1f3\x1f2026-01-03T00:00:00Z\n")
    names = {"domain": "string", "company_name": "string", "scraper_version": "integer", "updated_at": "datetime"}
    schema = {"fields": [{"name": name, "type": kind} for name, kind in names.items()]}
    package = {"name": "domain-index", "resources": [{"name": "shards", "path": "shards/*.usv", "schema": schema}]}
    (domains / "shards" / "datapackage.json").write_text(json.dumps(package))
    (domains / "shards" / "5e.lock").write_text('{"worker_id": "pi", "expires_at": "2026-01-01T00:05:00Z"}')
    (domains / "manifest.json").write_text('{"a.com": "d6", "c.com": "5e"}')
    done = here("index", "adopt", "domains", "--key", "domain", "--quiesced", "-u", "old")
    assert (done.code, done.out.partition(";")[0]) == (0, "imported 3 records of 3 files into 'domains'")
    assert done.err.splitlines() == ["1 lock of the other program: moved"]
    assert not (domains / "shards" / "5e.lock").exists()
    assert (domains / "adopted" / "manifest.json").read_text() == '{"a.com": "d6", "c.com": "5e"}'
    for key in ("a.com", "240.com"):  # the second belongs to the shard with the old lock
        here("index", "put", "domains", json.dumps({"domain": "240.com"}), "-u", "old")
        assert here("index", "compile", "domains", "-u", "old").code == 0
        assert json.loads(here("index", "get", "domains", key, "--json", "-u", "old").out)["domain"] == key
    assert here("index", "verify", "domains", "-u", "old").code == 0
    assert here("index", "adopt", "domains", "-u", "nowhere").code == 1
    assert not (tmp_path / "nowhere").exists()
