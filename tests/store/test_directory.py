"""The directory store where it differs from the others: names, versions, durability, listings."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, Unavailable, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Always, Match, Put, Version
from limpet.kernel.store.directory import DirectoryStore, Files, OsFiles
from store.disk import Tape, coarse, files_with, fork, join, new_root, run_threads, temps, unstamped

DAY_NS = 24 * 60 * 60 * 10**9
K = Key("a/k.json")
CHANGES = ("fsync", "link", "rename", "unlink", "mkdir", "rmdir", "utime")


@pytest.fixture(params=["disk", "tmpfs"])
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that is not there yet, on the disk and in memory."""
    with new_root(request.param) as path:
        yield path


# ---- names ----


def test_names_on_disk_are_apart(root: Path) -> None:
    store = DirectoryStore(root)
    keys = ["k", "k/x", "A", "a", "a.json", "a.json/b", "Ä", "A\u0308", ".hidden", "con%20fig"]
    for key in keys:
        store.put(Key(key), key.encode(), when=Absent())
    assert [(stat.key, store.get(stat.key).data) for stat in store.list()] == [
        (key, key.encode()) for key in sorted(keys, key=str.encode)
    ]
    on_disk = [name for _, folders, files in os.walk(root) for name in folders + files]
    assert len({name.lower() for name in on_disk if name.isascii()}) == len(on_disk)


def test_what_is_not_ours_is_no_object(root: Path) -> None:
    store = DirectoryStore(root)
    store.put(K, b"ours")
    (root / "a" / "l.json").symlink_to("k.json")
    (root / "b").symlink_to("a")
    for name in ("Upper.json", "white space=", "a=2fb=", "nul=00=", "half=c3=", "=2e=2e=", "plain", "x.json~"):
        (root / name).write_text("foreign")
    os.mkfifo(root / "pipe.json")
    (root / "folder.json").mkdir()
    (root / "Folder").mkdir()
    assert [stat.key for stat in store.list()] == [K]
    assert [stat.key for stat in store.sample("", 9)] == [K]
    assert store.list_dirs() == ["a"]
    for key, error in (("pipe.json", Corrupt), ("folder.json", Missing)):
        with pytest.raises(error):
            store.get(Key(key))
        with pytest.raises(Missing):
            store.head(Key(key))
        with pytest.raises(Conflict):
            store.put(Key(key), b"", when=Absent())
        with pytest.raises(Unavailable, match="not an object"):
            store.put(Key(key), b"")
    assert temps(root) == []


@pytest.mark.parametrize("bad", ["", "/"])
def test_a_root_that_cannot_be(bad: str) -> None:
    with pytest.raises(Invalid):
        DirectoryStore(bad)


def test_a_file_as_root_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DirectoryStore(tmp_path / "file")
    for act in (lambda: store.get(K), lambda: [*store.list()], lambda: store.put(K, b"")):
        with pytest.raises(Invalid, match="Not a directory"):
            act()


# ---- versions (F15) ----


def stale_wins(store: DirectoryStore, rounds: int) -> int:
    """How often a swap wins from a version that two later swaps have replaced."""
    wins = 0
    store.put(K, b"0")
    for _ in range(rounds):
        base = store.head(K).version
        store.put(K, b"1", when=Match(base))
        store.put(K, b"2", when=Match(store.head(K).version))
        try:
            store.put(K, b"3", when=Match(base))
            wins += 1
        except Conflict:
            pass
    return wins


def count_up(store: DirectoryStore, swaps: int) -> list[Version]:
    """Swap a counter of fixed size up until `swaps` have won; the versions they replaced."""
    bases: list[Version] = []
    while len(bases) < swaps:
        blob = store.get(K)
        try:
            store.put(K, b"%08d" % (int(blob.data) + 1), when=Match(blob.version))
            bases.append(blob.version)
        except Conflict:
            pass
    return bases


def test_a_stale_swap_never_wins(root: Path) -> None:
    assert stale_wins(DirectoryStore(root), 300) == 0


def test_a_stale_swap_never_wins_on_the_worst_disk(root: Path) -> None:
    assert stale_wins(DirectoryStore(root, files=coarse(), durability="os"), 300) == 0


def test_planted_without_stamps_stale_swaps_win(root: Path) -> None:
    assert stale_wins(DirectoryStore(root, files=unstamped(), durability="os"), 300) > 0


@pytest.mark.parametrize("files", [OsFiles(), coarse()], ids=["real", "coarse"])
def test_one_winner_for_each_version_among_threads_and_processes(root: Path, files: Files) -> None:
    store = DirectoryStore(root, files=files)
    store.put(K, b"%08d" % 0)
    swaps, wins = 40, root.parent / "wins"
    wins.mkdir()

    def child(name: str) -> None:
        bases: list[Version] = []
        run_threads(*[lambda: bases.extend(count_up(store, swaps))] * 2)
        (wins / name).write_text("\n".join(bases))

    join(*[fork(partial(child, name)) for name in ("one", "two")])
    won = Counter(line for file in wins.iterdir() for line in file.read_text().split())
    assert won.most_common(1)[0][1] == 1
    assert won.total() == int(store.get(K).data) == 4 * swaps


def test_versions_rise_above_a_future_mtime(root: Path) -> None:
    store = DirectoryStore(root)
    store.put(K, b"1")
    path = root / "a" / "k.json"
    ahead_ns = path.stat().st_mtime_ns + DAY_NS
    os.utime(path, ns=(ahead_ns, ahead_ns))
    base = store.head(K).version
    for when in (Match(base), Always()):
        store.put(K, b"2", when=when)
    assert path.stat().st_mtime_ns > ahead_ns
    with pytest.raises(Conflict):
        store.put(K, b"3", when=Match(base))


@pytest.mark.parametrize("grain_ns", [100, 1_000_000, 10**9, 2 * 10**9])
def test_versions_rise_where_mtimes_are_coarse(tmp_path: Path, grain_ns: int) -> None:
    files = files_with(utime=lambda fd, ns: OsFiles.utime(fd, ns=(0, ns[1] // grain_ns * grain_ns)))
    store = DirectoryStore(tmp_path, files=files)
    versions = [store.put(K, b"same") for _ in range(5)]
    assert len({version.split("-")[0] for version in versions}) == 5
    assert store.head(K).version == versions[-1]


def test_a_disk_that_keeps_no_mtimes_is_refused(tmp_path: Path) -> None:
    files = files_with(utime=lambda fd, ns: OsFiles.utime(fd, ns=(0, 0)))
    store = DirectoryStore(tmp_path, files=files)
    version = store.put(K, b"old")
    with pytest.raises(Unsupported):
        store.put(K, b"new", when=Match(version))
    assert (store.get(K).data, temps(tmp_path)) == (b"old", [])


def test_a_write_that_was_overtaken_is_stamped_again(tmp_path: Path) -> None:
    """The object gets a higher stamp between our first look and our lock."""
    DirectoryStore(tmp_path).put(K, b"0")
    path = tmp_path / "a" / "k.json"
    ahead_ns = path.stat().st_mtime_ns + DAY_NS

    def overtake(name: str, args: tuple[Any, ...]) -> None:
        if name == "lock":
            os.utime(path, ns=(ahead_ns, ahead_ns))

    store = DirectoryStore(tmp_path, files=files_with(overtake))
    version = store.put(K, b"1")
    assert int(version.split("-")[0], 16) == ahead_ns + 1
    assert (store.head(K).version, store.get(K).data) == (version, b"1")


# ---- durability (F25) ----


def test_what_is_synced_and_when(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    tape = Tape(tmp_path)
    store = DirectoryStore(root, files=tape.files)
    store.put(Key("a/b/k.json"), b"1", when=Absent())
    assert tape.take(*CHANGES) == [
        *("mkdir new", "mkdir new/store", "fsync .", "fsync new"),
        *("mkdir new/store/.limpet", "mkdir new/store/.limpet/locks", "mkdir new/store/.limpet/tmp"),
        *("utime TEMP", "fsync TEMP", "mkdir new/store/a", "mkdir new/store/a/b", "link new/store/a/b/k.json"),
        *("fsync new/store/a/b", "fsync new/store/a", "fsync new/store", "unlink TEMP"),
    ]
    store.put(Key("a/b/k.json"), b"1")
    tape.take()
    store.put(Key("a/b/k.json"), b"2", when=Match(store.head(Key("a/b/k.json")).version))
    replaced = ["utime TEMP", "fsync TEMP", "rename new/store/a/b/k.json", "fsync new/store/a/b"]
    assert tape.take(*CHANGES) == replaced
    store.put(Key("a/b/k.json"), b"3")
    assert tape.take(*CHANGES) == replaced
    store.delete(Key("a/b/k.json"))
    assert tape.take(*CHANGES) == [
        *("unlink new/store/a/b/k.json", "fsync new/store/a/b"),
        *("rmdir new/store/a/b", "rmdir new/store/a"),
    ]


def test_a_folder_of_a_killed_writer_is_synced_once(tmp_path: Path) -> None:
    """Its maker did not come to sync its parent, so the next writer does; also if it was pruned and made again."""
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path, files=tape.files)
    for _ in range(2):
        (tmp_path / "a").mkdir()
        store.put(K, b"1")
        assert tape.take("fsync") == ["fsync TEMP", "fsync a", "fsync ."]
        store.put(Key("a/l.json"), b"1")
        assert tape.take("fsync") == ["fsync TEMP", "fsync a"]
        store.delete_many([K, Key("a/l.json")])
        assert not (tmp_path / "a").exists()
        tape.take()


def test_os_durability_syncs_nothing(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path / "store", files=tape.files, durability="os")
    store.put(K, b"1", when=Absent())
    store.put(K, b"2")
    store.delete(K)
    assert tape.take("fsync") == []


def test_the_cost_in_calls(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path / "store", files=tape.files)
    store.put(K, b"1")
    version = store.put(K, b"12345")
    tape.take()
    costs: list[tuple[Callable[[], object], str]] = [
        (lambda: store.get(K), "open fstat pread close"),
        (lambda: store.get(K, range=(1, 3)), "open fstat pread close"),
        (lambda: store.head(K), "identify stat"),
        (
            lambda: store.put(Key("a/new.json"), b"", when=Absent()),
            "identify stat create write fstat utime fstat fsync close link fsync unlink",
        ),
        (
            lambda: store.put(K, b"", when=Match(version)),
            "identify stat create write fstat utime fstat fsync close lock stat rename fsync unlock",
        ),
        (lambda: store.delete(K), "identify lock unlink fsync identify rmdir unlock"),
    ]
    for act, cost in costs:
        act()
        assert [line.split()[0] for line in tape.take()] == cost.split()
    for when in (Absent(), Match(version)):
        with pytest.raises(Conflict):
            store.put(Key("a/new.json"), b"", when=when)
        assert tape.take() == ["identify store/a", "stat store/a/new.json"]


# ---- listing ----


def test_list_is_in_key_order_from_any_place(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, durability="os")
    keys = ["a", "a-b", "a/b", "a/b/c", "a/b-", "a/bb", "a.json", "a0", "Z/z", "é/1", "\U0001f41a"]
    for key in keys:
        store.put(Key(key), b"")
    ordered = sorted(keys, key=str.encode)
    assert [stat.key for stat in store.list()] == ordered
    for after in [*keys, "a/", "a/b/", "a/b/b", "\x01", "zz", "a/b/cc"]:
        assert [stat.key for stat in store.list(after=after)] == [k for k in ordered if k.encode() > after.encode()]
    assert [stat.key for stat in store.list("a", after="a/b")] == ["a/b-", "a/b/c", "a/bb"]
    assert store.list_dirs("a") == ["b"]


def test_list_reads_no_folder_before_its_turn(tmp_path: Path) -> None:
    plain = DirectoryStore(tmp_path, durability="os")
    for i in range(100):
        plain.put(Key(f"q/{i // 5:02}/{i % 5}.json"), b"")
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path, files=tape.files)
    listing = store.list("q")
    assert tape.take() == []
    next(listing)
    assert tape.take() == ["open q", "scandir q", "reopen q/00", "scandir q/00", "stat q/00/0.json"]
    assert len([*listing]) == 99
    assert len(tape.take("scandir")) == 19
    assert len([*store.list("q", after="q/17/2.json")]) == 12
    assert tape.take("scandir") == ["scandir q", *(f"scandir q/{i}" for i in (17, 18, 19))]
    assert len(store.list_dirs("q")) == 20
    assert tape.take() == ["open q", "scandir q", "close q"]
    assert len(store.sample("q", 7)) == 7
    counts = Counter(line.split()[0] for line in tape.take())
    assert counts["stat"] == 7
    assert counts["walk"] <= 5, "the folder, perhaps once more from its beginning, and two below it"
    assert len({stat.key for _ in range(30) for stat in store.sample("q", 7)}) == 100, "it goes round"


def test_sample_reaches_every_place(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, durability="os")
    for i in range(8):
        store.put(Key(f"q/pending/{i}/task.json"), b"")
        store.put(Key(f"q/pending/{i}/lease.json"), b"")
    seen = {store.sample("q", 1)[0].key for _ in range(400)}
    assert len(seen) == 16
    assert len({stat.key for stat in store.sample("q", 99)}) == 16


def test_list_beside_writers_shows_all_that_stays(root: Path) -> None:
    store = DirectoryStore(root, durability="os")
    stays = [Key(f"s/{i:02}/{kind}.json") for i in range(10) for kind in "ac"]
    store.put_many([Put(key, b"") for key in stays])
    done = threading.Event()

    def disturb() -> None:
        for i in range(300):
            key = Key(f"s/{i % 12:02}/b.json")
            store.put(key, b"x" * i)
            store.delete(key)
        done.set()

    def watch() -> None:
        while not done.is_set():
            keys = [stat.key for stat in store.list("s")]
            assert keys == sorted(keys)
            assert [key for key in keys if not key.endswith("b.json")] == stays

    run_threads(disturb, watch)


# ---- the clock ----


def test_every_answer_feeds_the_clock(tmp_path: Path) -> None:
    modified = DirectoryStore(tmp_path).head(K).modified if DirectoryStore(tmp_path).put(K, b"1") else None
    assert modified is not None
    acts: list[Callable[[DirectoryStore], object]] = [
        lambda store: store.get(K),
        lambda store: store.head(K),
        lambda store: [*store.list()],
        lambda store: store.sample("", 1),
    ]
    for act in acts:
        tape = Tape(tmp_path)
        store = DirectoryStore(tmp_path, files=tape.files)
        act(store)
        tape.take()
        assert store.now() >= modified
        assert tape.take() == []


def test_last_modified_is_not_ahead_of_the_disks_clock(root: Path) -> None:
    store = DirectoryStore(root)
    for i in range(50):
        store.put(Key(f"a/{i}.json"), b"", when=Absent())
        (root / "later").write_text("x")
        assert (root / "a" / f"{i}.json").stat().st_mtime_ns <= (root / "later").stat().st_mtime_ns
