"""The directory store in trouble: failing disks, killed and forked processes, folders that vanish."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from limpet.kernel.errors import Conflict, Corrupt, Denied, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Always, Blob, Match, Put, Version, When
from limpet.kernel.store.directory import DirectoryStore, OsFiles
from store.disk import Fault, Tape, Versioned, failing, files_with, fork, join, new_root, run_threads, temps

DAY_NS = 24 * 60 * 60 * 10**9
K = Key("a/k.json")


@pytest.fixture(params=["disk", "tmpfs"])
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that is not there yet, on the disk and in memory."""
    with new_root(request.param) as path:
        yield path


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    where = tmp_path / "mounted"
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        gc.collect()  # a store keeps folders open
        subprocess.run(["umount", where], check=True)


# ---- failing disks (F27) ----


KINDS: dict[int, type[LimpetError]] = {errno.ENOSPC: Unavailable, errno.EROFS: Denied, errno.EIO: Unavailable}


@pytest.mark.parametrize("code", KINDS, ids=errno.errorcode.get)
@pytest.mark.parametrize("case", ["first", "absent", "always", "match", "delete"])
def test_every_call_of_a_write_may_fail(tmp_path: Path, code: int, case: str) -> None:
    kinds: Counter[str] = Counter()
    for number in range(1, 100):
        root = tmp_path / str(number)
        clean = DirectoryStore(root, durability="os")
        if case != "first":
            clean.put(Key("b/sweep.json"), b"")
        when: When = Absent() if case in ("first", "absent") else Always()
        old = None
        if case in ("always", "match", "delete"):
            old = b"old"
            version = clean.put(K, old)
            when = Match(version) if case == "match" else when
        fault = Fault(number, code)
        store = DirectoryStore(root, files=fault.files)
        new = None if case == "delete" else b"new"
        try:
            store.delete(K) if new is None else store.put(K, new, when=when)
            outcome = "done"
        except LimpetError as error:
            outcome = type(error).__name__
        if not fault.failed:
            break
        assert outcome in ("done", "OutcomeUnknown", KINDS[code].__name__)
        kinds[outcome] += 1
        assert _data(clean) == (new if outcome in ("done", "OutcomeUnknown") else old), (number, fault.failed)
        assert temps(root) == [] or (fault.failed == "unlink" and outcome == "done")
        if outcome == KINDS[code].__name__:
            store.delete(K) if new is None else store.put(K, new, when=when)
            assert _data(clean) == new
    assert not fault.failed
    assert kinds["OutcomeUnknown"] >= (2 if case in ("first", "absent") else 1)  # fsync of the folders
    assert kinds[KINDS[code].__name__] >= (3 if case == "delete" else 9)


def _data(store: DirectoryStore) -> bytes | None:
    try:
        return store.get(K).data
    except Missing:
        return None


@pytest.mark.parametrize("case", ["absent", "match"])
def test_a_move_that_failed_and_was_made_is_unknown(tmp_path: Path, case: str) -> None:
    def broken(move: Callable[..., None]) -> Callable[..., None]:
        def call(name: str, to_name: str, /, **folders: int) -> None:
            move(name, to_name, **folders)
            raise OSError(errno.EIO, "reply lost")

        return call

    files = files_with(link=broken(OsFiles.link), rename=broken(OsFiles.rename))
    clean = DirectoryStore(tmp_path)
    clean.put(Key("a/other.json"), b"")
    when: When = Absent()
    if case == "match":
        clean.put(K, b"older")
        when = Match(clean.put(K, b"old"))  # now its lock file is there, too
    with pytest.raises(OutcomeUnknown):
        DirectoryStore(tmp_path, files=files).put(K, b"new", when=when)
    assert (clean.get(K).data, temps(tmp_path)) == (b"new", [])


def test_a_full_disk_for_real(mounted: Path) -> None:
    store = DirectoryStore(mounted)
    body = bytes(100_000)
    results = [store.put_many([Put(Key(f"a/{i}.json"), body, Absent())])[Key(f"a/{i}.json")] for i in range(20)]
    kept = sum(isinstance(result, str) for result in results)
    assert "disk is full" in str(results[-1])
    version = store.head(Key("a/0.json")).version
    with pytest.raises(Unavailable, match="disk is full"):
        store.put(Key("a/0.json"), body * 2, when=Match(version))
    assert temps(mounted) == []
    assert 0 < kept == len([*store.list()])
    blobs = store.get_many(stat.key for stat in store.list()).values()
    assert all(isinstance(blob, Blob) and blob.data == body for blob in blobs)
    store.delete(Key("a/1.json"))
    store.put(Key("a/0.json"), body, when=Match(version))


def test_a_read_only_disk_for_real(mounted: Path) -> None:
    DirectoryStore(mounted).put(K, b"1")
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    store = DirectoryStore(mounted)
    assert (store.get(K).data, [stat.key for stat in store.list()]) == (b"1", [K])
    for act in (lambda: store.put(K, b"2"), lambda: store.put(Key("x/y"), b""), lambda: store.delete(K)):
        with pytest.raises(Denied, match="Read-only"):
            act()
    assert store.get(K).data == b"1"


def test_reading_creates_nothing(root: Path) -> None:
    store = DirectoryStore(root)
    for make_root in (False, True):
        if make_root:
            root.mkdir()
        with pytest.raises(Missing):
            store.get(K)
        with pytest.raises(Missing):
            store.head(K)
        with pytest.raises(Conflict):
            store.put(K, b"", when=Match(Version("1-1-1")))
        store.delete(K)
        assert ([*store.list()], store.sample("a", 3), store.list_dirs()) == ([], [], [])
        assert root.exists() is make_root
    assert os.listdir(root) == []


def test_a_failing_read_is_never_an_empty_result(tmp_path: Path) -> None:
    """F23."""
    DirectoryStore(tmp_path).put(K, b"1")
    for code, kind in ((errno.EACCES, Denied), (errno.EIO, Unavailable)):
        acts: list[tuple[str, Callable[[DirectoryStore], object]]] = [
            ("open fstat pread", lambda store: store.get(K)),
            ("open fstat", lambda store: store.head(K)),
            ("stat", lambda store: (store.change_token("a"), store.head(K))),  # its folder is open by then
            ("scandir stat", lambda store: [*store.list()]),
            ("walk stat", lambda store: store.sample("", 1)),
            ("scandir", lambda store: store.list_dirs()),
        ]
        for calls, act in acts:
            for call in calls.split():
                with pytest.raises(kind):
                    act(DirectoryStore(tmp_path, files=failing(call, code)))


def test_a_file_that_was_cut_short_is_corrupt(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).put(K, b"12345")
    files = files_with(fstat=lambda fd: Versioned(os.fstat(fd).st_mode, 1, 1, 9, 1))
    with pytest.raises(Corrupt):
        DirectoryStore(tmp_path, files=files).get(K)


def test_short_reads_and_writes_are_taken_up_again(tmp_path: Path) -> None:
    files = files_with(
        write=lambda fd, data: os.write(fd, data[:3]),
        pread=lambda fd, size, offset: os.pread(fd, min(size, 2), offset),
    )
    store = DirectoryStore(tmp_path, files=files)
    store.put(K, b"0123456789")
    assert store.get(K).data == b"0123456789"
    assert store.get(K, range=(2, 9)).data == b"2345678"


# ---- crashes and other processes ----


def test_kill_9_leaves_whole_objects_and_loses_none(root: Path) -> None:
    store = DirectoryStore(root)
    store.put(K, b"0")
    kills = 25
    acked: list[str] = []
    for kill in range(kills):
        reader, writer = os.pipe()

        def write_on(kill: int = kill, writer: int = writer) -> None:
            for i in range(10**6):
                body = f"{kill}.{i} ".encode() * 2000
                store.put(Key(f"new/{kill}/{i}.json"), body, when=Absent())
                store.put(K, body)
                os.write(writer, f"{kill}/{i}\n".encode())

        child = fork(write_on)
        os.close(writer)
        with open(reader) as lines:
            acked += [next(lines).strip() for _ in range(1 + kill % 7)]
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            acked += [line.strip() for line in lines if line.endswith("\n")]
    keys = {stat.key for stat in store.list()}
    assert {f"new/{name}.json" for name in acked} <= keys
    for key in keys:
        data = store.get(key).data
        assert data == data.split()[0].join([b"", b" "]) * 2000
    _age_and_sweep(root)


def _age_and_sweep(root: Path) -> None:
    folder = root / ".limpet" / "tmp"
    (folder / "left").write_text("by a killed writer")
    for name in temps(root):
        os.utime(folder / name, ns=(0, (folder / name).stat().st_mtime_ns - DAY_NS - 10**9))
    (folder / "young").write_text("by a living one")
    store = DirectoryStore(root)
    store.get(K)
    assert "left" in temps(root)
    store.put(K, b"1")
    assert temps(root) == ["young"]


def test_temps_are_judged_by_the_disks_clock(tmp_path: Path) -> None:
    """An object with an mtime in the future must not make the temp files of others look old."""
    DirectoryStore(tmp_path).put(K, b"1")
    path = tmp_path / "a" / "k.json"
    ahead_ns = path.stat().st_mtime_ns + 3 * DAY_NS
    os.utime(path, ns=(ahead_ns, ahead_ns))
    (tmp_path / ".limpet" / "tmp" / "young").write_text("by a living one")
    DirectoryStore(tmp_path).put(K, b"2")
    assert temps(tmp_path) == ["young"]


def test_temps_live_for_a_day(tmp_path: Path) -> None:
    """A day, in the unit of mtimes: a writer that is slow for hours keeps its file, and nothing piles up for a week."""
    DirectoryStore(tmp_path).put(K, b"1")
    folder = tmp_path / ".limpet" / "tmp"
    for hours in (1, 23, 25, 48):
        file = folder / f"{hours}h"
        file.write_text("left")
        os.utime(file, ns=(0, file.stat().st_mtime_ns - hours * 3600 * 10**9))
    DirectoryStore(tmp_path).put(K, b"2")
    assert sorted(temps(tmp_path)) == ["1h", "23h"]


def test_a_delete_waits_for_the_lock_of_its_key(tmp_path: Path) -> None:
    """A swap has looked at the object and holds the lock: what it has seen stays until it has acted."""
    first: list[str] = []
    met = threading.Event()

    def watch(name: str, args: tuple[Any, ...]) -> None:
        if name in ("lock", "unlink"):
            first.append(name)
            met.set()

    deleter = DirectoryStore(tmp_path, files=files_with(watch))
    deleting = threading.Thread(target=lambda: deleter.delete(K))

    def meanwhile(name: str, args: tuple[Any, ...]) -> None:
        if name == "rename" and not deleting.ident:
            deleting.start()
            met.wait()

    store = DirectoryStore(tmp_path, files=files_with(meanwhile))
    version = store.put(K, b"1")
    store.put(K, b"2", when=Match(version))
    deleting.join()
    assert first == ["lock", "unlink"]
    with pytest.raises(Missing):
        store.get(K)


def test_a_delete_of_what_is_gone_is_synced_too(tmp_path: Path) -> None:
    """Another process has removed the name and not synced the folder yet; our answer says that it stays gone (F25)."""
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path, files=tape.files)
    store.put_many([Put(K, b"1"), Put(Key("a/stays.json"), b"1")])
    (tmp_path / K).unlink()
    store.delete(Key("a/other.json"))
    store.delete(K)
    tape.take()
    for _ in range(2):
        store.delete(K)
        assert tape.take("unlink", "fsync") == ["unlink a/k.json", "fsync a"]


ENTRY = [Key("q/e/task.json"), Key("q/e/lease.json")]


def test_a_delete_in_order_takes_no_lock_and_syncs_each_before_the_next(tmp_path: Path) -> None:
    """A power loss may not bring the first one back when the second is gone (decision 0002)."""
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path, files=tape.files)
    store.put_many([Put(key, b"1") for key in (*ENTRY, Key("q/f/task.json"))])
    tape.take()
    store.delete_in_order(ENTRY)
    calls = ["unlink q/e/task.json", "fsync q/e", "unlink q/e/lease.json", "fsync q/e", "rmdir q/e"]
    assert tape.take("lock", "unlink", "fsync", "rmdir") == calls
    store.delete_in_order([Key("q/f/task.json")])
    assert tape.take("rmdir") == ["rmdir q/f", "rmdir q"]


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_delete_in_order_that_fails_leaves_the_later_ones(tmp_path: Path, call: str) -> None:
    clean = DirectoryStore(tmp_path)
    clean.put_many([Put(key, b"1") for key in ENTRY])
    with pytest.raises(Unavailable if call == "unlink" else OutcomeUnknown):
        DirectoryStore(tmp_path, files=failing(call, errno.EIO)).delete_in_order(ENTRY)
    left = sorted(ENTRY) if call == "unlink" else ENTRY[1:]
    assert [stat.key for stat in clean.list("q")] == left


def test_a_folder_is_pruned_where_folders_count_no_links(tmp_path: Path) -> None:
    """btrfs gives every folder one link."""
    files = files_with(fstat=lambda fd: SimpleNamespace(**{**_fields(os.fstat(fd)), "st_nlink": 1}))
    store = DirectoryStore(tmp_path, files=files)
    store.put_many([Put(key, b"1") for key in ENTRY])
    store.delete_in_order(ENTRY)
    assert os.listdir(tmp_path) == [".limpet"]


def _fields(found: os.stat_result) -> dict[str, Any]:
    return {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}


def test_writers_race_with_pruning_deletes(root: Path) -> None:
    store = DirectoryStore(root)

    def work(name: str) -> None:
        key = Key(f"d/e/{name}.json")
        for i in range(150):
            store.put(key, b"%d" % i, when=(Absent(), Always())[i % 2])
            assert store.get(key).data == b"%d" % i
            store.delete(key)
            assert [stat.key for stat in store.list("d") if stat.key == key] == []

    run_threads(*[lambda name=name: work(name) for name in ("one", "two", "three")])
    assert os.listdir(root) == [".limpet"]
    assert temps(root) == []


def test_a_lost_folder_is_made_again(tmp_path: Path) -> None:
    """A delete prunes the folder between our mkdir and our link, again and again."""
    store = DirectoryStore(tmp_path)
    left = 5

    def prune(name: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if name == "link" and (tmp_path / "d").exists() and left:
            left -= 1
            shutil.rmtree(tmp_path / "d")

    store = DirectoryStore(tmp_path, files=files_with(prune))
    store.put(Key("d/e/f.json"), b"1", when=Absent())
    assert (left, store.get(Key("d/e/f.json")).data) == (0, b"1")
    left = 10**6
    with pytest.raises(Unavailable):
        store.put(Key("d/e/g.json"), b"1", when=Absent())
    assert temps(tmp_path) == []


def test_a_fork_does_not_take_the_locks_with_it(tmp_path: Path) -> None:
    """A process with a lock forks a child that lives on, and is killed: the lock is free."""
    (tmp_path / "lock").touch()
    lock = str(tmp_path / "lock")
    ready, told = os.pipe()
    stay, go = os.pipe()

    def holder() -> None:
        OsFiles.lock(lock)
        fork(live_on)
        os.read(stay, 1)

    def live_on() -> None:
        os.close(go)
        os.write(told, b"1")
        os.read(stay, 1)

    pid = fork(holder)
    assert os.read(ready, 1) == b"1"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    OsFiles.unlock(OsFiles.lock(lock))
    for fd in (ready, told, stay, go):
        os.close(fd)


def test_forked_children_write_beside_their_parent(root: Path) -> None:
    store = DirectoryStore(root)
    store.put(K, b"0")

    def work(name: str) -> None:
        for i in range(30):
            store.put(Key(f"{name}/{i}.json"), name.encode(), when=Absent())
            store.put(K, name.encode())

    pids = [fork(partial(work, name)) for name in ("one", "two")]
    work("three")
    join(*pids)
    assert len([*store.list()]) == 91
