"""Names that no store takes, but that a bucket or a disk may have: what they broke, and no longer break."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import limpet
from fuzz.kinds import KINDS, keep_supervising, supervise
from fuzz.world import Bench
from limpet.kernel.keys import Key, is_key
from limpet.kernel.store import DirectoryStore

ODD = ("\x1b", "x" * 300, "..", "a\\b", "a/.uploads/b")


@pytest.mark.parametrize("folder", ["inbox/7f", "packs/7f", "shards", "quarantine"])
@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_name_that_no_store_takes_stops_no_index(name: str, folder: str) -> None:
    bench = Bench(KINDS["shard"].fleet())
    key = f"indexes/recs/{folder}/{name}"
    assert not is_key(key)
    bench.store.place(key, next(key for key in bench.store.objects if key.startswith("indexes/recs/packs")), b"{")
    with bench:
        index = bench.open().index("recs")
        records = len([*index.scan()])
        assert records == 75
        index.compile(full=True)
        assert len([*index.scan()]) == records
        assert index.get("s1")
        verified = bench.cli("index", "verify", "recs", "--json")
        assert verified.code == 1
        assert '"kind": "unknown"' in verified.out


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_name_that_no_store_takes_stops_no_supervisor(name: str) -> None:
    bench = Bench(KINDS["sync-outbox"].fleet())
    bench.place = "b"
    for folder in ("sync/outbox", "sync/cursors", "sync"):
        bench.places["b"].place(f"{folder}/{name}", Key("sync/node.json"), b"{")
    with bench:
        supervise(bench)
        keep_supervising(bench)
    assert bench.missing == []


@pytest.mark.parametrize("name", [b"\xff\xfe", b"x" * 245 + b".json", b"a\xc3.lock", b"\xed\xa0\x80.json", b"=ff.json"])
def test_a_file_name_that_is_not_utf8_hides_nothing(tmp_path: Path, name: bytes) -> None:
    fleet = limpet.open(tmp_path, durability="os")
    fleet.queue("q").push({"n": 1}, id="one")
    for folder in (b"", b"queues", b"queues/q", b"queues/q/pending", b"queues/q/pending/one"):
        with open(os.path.join(os.fsencode(tmp_path), folder, name), "wb"):
            pass
        os.mkdir(os.path.join(os.fsencode(tmp_path), folder, name + b"="))
    store = DirectoryStore(tmp_path)
    assert [stat.key for stat in store.list("queues")] == ["queues/q/pending/one/task.json"]
    assert [*store.list_dirs("queues/q/pending")] == ["one"]
    assert [stat.key for stat in store.sample("queues/q", 5)] == ["queues/q/pending/one/task.json"]
    with fleet.queue("q").claim() as claim:
        assert [task.id for task in claim] == ["one"]
