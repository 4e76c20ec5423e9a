"""A directory that others may write or read: links, foreign times, and who has access."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from limpet.kernel.errors import Denied, Missing
from limpet.kernel.keys import Key, clock_key
from limpet.kernel.store import Absent, MeteredStore, ScopedStore, Store
from limpet.kernel.store.directory import DirectoryStore, Files, OsFiles, WalkFiles
from store.disk import Tape, files_with, fork, join, temps
from support.clock import ManualRuntime

K = Key("queues/jobs/completed/k.json")
DAY = timedelta(days=1)
NOBODY = 65534


@pytest.fixture(params=["kernel", "steps"])
def files(request: pytest.FixtureRequest) -> Files:
    """The best way that this kernel has to open paths without links, and the one that works on any."""
    return OsFiles() if request.param == "kernel" else WalkFiles()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Somebody's files beside the store; not one of them may change."""
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "k.json").write_text("precious")
    (folder / "sub" / "k.json").write_text("precious")
    (folder / "empty").mkdir()
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    yield folder
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


# ---- links ----


def every_verb(store: Store, key: Key, prefix: str) -> list[Callable[[], object]]:
    return [
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.put(key, b"new"),
        lambda: store.put(key, b"new", when=Absent()),
        lambda: store.delete(key),
        lambda: store.delete_in_order([key]),
        lambda: [*store.list(prefix)],
        lambda: store.sample(prefix, 3),
        lambda: store.list_dirs(prefix),
    ]


@pytest.mark.parametrize("where", ["queues", "queues/jobs", "queues/jobs/completed"])
@pytest.mark.parametrize("known", [False, True], ids=["fresh", "warm"])
def test_no_link_below_the_root_is_followed(
    tmp_path: Path, outside: Path, files: Files, where: str, known: bool
) -> None:
    """Neither by a process that comes upon it, nor by one that had the folder open before."""
    root = tmp_path / "store"
    store = DirectoryStore(root, files=files)
    store.put(K, b"ours")
    store.put(Key("other/k.json"), b"ours")
    if not known:
        store = DirectoryStore(root, files=files)
    shutil.rmtree(root / where)
    below = Path(K).relative_to(where).parent
    target = outside if str(below) == "." else tmp_path / "way"
    if target != outside:
        (target / below).parent.mkdir(parents=True)
        (target / below).symlink_to(outside)
    (root / where).symlink_to(target)
    for verb in every_verb(store, K, "queues/jobs/completed"):
        with pytest.raises(Denied, match=rf"{root}/{where} is a symbolic link") as refused:
            verb()
        assert "bind mount" in refused.value.hint
    assert store.change_token("queues/jobs/completed") is None
    assert [stat.key for stat in store.list()] == ["other/k.json"], "a listing passes over the link"
    assert [stat.key for stat in store.sample("", 9)] == ["other/k.json"]
    assert (root / where).is_symlink()
    assert temps(root) == []


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_link_in_an_objects_place(
    tmp_path: Path, outside: Path, files: Files, durability: Literal["fsync", "os"]
) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root, files=files, durability=durability)
    store.put(Key("a/own.json"), b"ours")
    (root / "a" / "k.json").symlink_to(outside / "k.json")
    key = Key("a/k.json")
    for verb in every_verb(store, key, "a")[:4]:
        with pytest.raises(Denied, match=r"a/k\.json is a symbolic link"):
            verb()
    assert [stat.key for stat in store.list()] == ["a/own.json"]
    store.delete(key)
    assert not (root / "a" / "k.json").is_symlink(), "deleted is the link, not what it points to"
    store.put(key, b"ours", when=Absent())


@pytest.mark.parametrize("where", [".limpet", ".limpet/tmp", ".limpet/locks"])
def test_our_own_folder_as_a_link(tmp_path: Path, outside: Path, files: Files, where: str) -> None:
    root = tmp_path / "store"
    DirectoryStore(root, files=files).put(K, b"ours")
    shutil.rmtree(root / where)
    (root / where).symlink_to(outside)
    store = DirectoryStore(root, files=files)
    for act in (lambda: store.put(K, b"new"), lambda: store.delete(K)):
        with pytest.raises(Denied, match=rf"{where} is a symbolic link"):
            act()
    assert store.get(K).data == b"ours"


def test_a_link_for_a_lock_is_not_opened(tmp_path: Path, outside: Path, files: Files) -> None:
    root = tmp_path / "store"
    store = DirectoryStore(root, files=files)
    store.put(K, b"1")
    store.put(K, b"2")
    (lock,) = (root / ".limpet" / "locks").iterdir()
    lock.unlink()
    lock.symlink_to(outside / "k.json")
    with pytest.raises(Denied, match="is a symbolic link"):
        store.put(K, b"3")


def test_a_folder_that_becomes_a_link_at_any_moment(tmp_path: Path, outside: Path) -> None:
    """Before each single call of a write and of a delete: what is outside stays as it is."""
    for number in range(200):
        root = tmp_path / f"store-{number}"
        DirectoryStore(root, durability="os").put(K, b"old")
        left = number

        def swap(name: str, args: tuple[Any, ...], root: Path = root) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                shutil.move(root / "queues" / "jobs" / "completed", root / "moved")
                (root / "queues" / "jobs" / "completed").symlink_to(outside)

        store = DirectoryStore(root, files=files_with(swap))
        with suppress(Denied, Missing):
            store.put(K, b"new")
            store.delete(K)
            [*store.list("queues")]
        if left > 0:
            break
    assert 20 < number < 199


def test_the_root_itself_may_be_a_link(tmp_path: Path, files: Files) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "way").symlink_to(tmp_path / "disk")
    (tmp_path / "fleet").symlink_to("way/real")
    store = DirectoryStore(tmp_path / "fleet", files=files)
    store.put(K, b"1")
    assert (tmp_path / "disk" / "real" / K).read_bytes() == b"1"
    assert DirectoryStore(tmp_path / "disk" / "real", files=files).get(K).data == b"1"
    assert str(store.root) == str(tmp_path / "fleet")


def test_the_open_limit_is_not_used_up(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", durability="os")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for i in range(200):
        store.put(Key(f"a/{i}/k.json"), b"")
        store.head(Key(f"a/{i}/k.json"))
    assert len(os.listdir("/proc/self/fd")) - before < 50
    [*store.list()]
    del store
    assert len(os.listdir("/proc/self/fd")) <= before + 1


# ---- times ----


def ahead(path: Path, by: timedelta) -> None:
    """As `rsync -a` brings a file from a machine whose clock is ahead."""
    at_ns = path.stat().st_mtime_ns + int(by.total_seconds() * 1e9)
    os.utime(path, ns=(at_ns, at_ns))


def now() -> datetime:
    return datetime.now(UTC)


LOOKS: list[Callable[[Store], object]] = [
    lambda store: store.get(K),
    lambda store: store.head(K),
    lambda store: [*store.list()],
    lambda store: store.sample("", 5),
    lambda store: store.put(K, b"new"),
    lambda store: (store.put(K, b"new"), store.head(K)),
]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("wrap", [lambda store: store, MeteredStore, ScopedStore], ids=["bare", "metered", "scoped"])
def test_a_future_mtime_moves_no_clock(tmp_path: Path, wrap: Callable[[Store], Store], look: Any) -> None:
    DirectoryStore(tmp_path).put(K, b"old")
    ahead(tmp_path / K, 400 * DAY)
    store = wrap(DirectoryStore(tmp_path))
    look(store)
    for max_age_s in (None, 0.0):
        assert store.now(max_age_s=max_age_s) <= now() + timedelta(seconds=1)
    assert store.head(K).modified <= now() + timedelta(seconds=1)


def test_nor_does_that_of_the_object_that_reads_the_clock(tmp_path: Path) -> None:
    first = DirectoryStore(tmp_path)
    for slot in range(16):
        first.put(clock_key(slot), b"{}")
        ahead(tmp_path / clock_key(slot), 400 * DAY)
    for store in (
        DirectoryStore(tmp_path),
        ScopedStore(DirectoryStore(tmp_path)),
        MeteredStore(DirectoryStore(tmp_path)),
    ):
        assert now() - timedelta(seconds=1) <= store.now(max_age_s=0.0) <= now() + timedelta(seconds=1)


def test_a_file_servers_clock_is_believed(tmp_path: Path) -> None:
    """Its clock is an hour ahead of ours: that is no lie, as the first file of our own shows. Nothing is deleted."""
    runtime = ManualRuntime()
    files = files_with(fstat=_shifted(OsFiles.fstat, runtime), stat=_shifted(OsFiles.stat, runtime))
    store = DirectoryStore(tmp_path, files=files, runtime=runtime)
    store.put(K, b"1")
    server = runtime.wall() + timedelta(hours=1)
    assert abs(store.head(K).modified - server) < timedelta(seconds=1)
    other = DirectoryStore(tmp_path, files=files, runtime=runtime)
    assert abs(other.head(K).modified - server) < timedelta(seconds=1), "a reader asks with a temp file"
    assert temps(tmp_path) == []


def _shifted(real: Callable[..., Any], runtime: ManualRuntime) -> Callable[..., Any]:
    """Files' times as if now were an hour after the machine's wall clock, on a clock that we move by hand."""
    from store.disk import Versioned

    def call(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        wall_ns = int(runtime.wall().timestamp() * 1e9)
        return Versioned(found.st_mode, found.st_dev, found.st_ino, found.st_size, wall_ns + 3600 * 10**9)

    return call


def test_a_clock_that_was_set_back_rules(tmp_path: Path) -> None:
    """What is written now is now, even if this process has seen later times that were true then."""
    runtime = ManualRuntime()
    at_ns = [int(runtime.wall().timestamp() * 1e9) + 10 * 10**9]
    seen = _at(at_ns)
    store = DirectoryStore(tmp_path, files=files_with(fstat=seen), runtime=runtime)
    runtime.time.sleep(10)
    store.put(K, b"1")
    was = store.now()
    at_ns[0] -= 3600 * 10**9
    store.put(Key("a/l.json"), b"1")
    assert was - store.now() > timedelta(minutes=59)


def _at(at_ns: list[int]) -> Callable[[int], Any]:
    from store.disk import Versioned

    def fstat(fd: int) -> Any:
        real = os.fstat(fd)
        return Versioned(real.st_mode, real.st_dev, real.st_ino, real.st_size, at_ns[0])

    return fstat


def test_a_reader_without_the_right_to_write_believes_its_own_clock(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).put(K, b"1")
    ahead(tmp_path / K, DAY)

    def refuse(name: str, args: tuple[Any, ...]) -> None:
        if name == "create":
            raise OSError(errno.EROFS, "read-only")

    store = DirectoryStore(tmp_path, files=files_with(refuse))
    assert store.head(K).modified <= now()
    assert store.now() <= now() + timedelta(seconds=1)


# ---- who has access ----


def modes(root: Path) -> dict[str, set[int]]:
    """The modes below a root, by kind."""
    found: dict[str, set[int]] = {"file": set(), "folder": set()}
    for above, folders, names in os.walk(root):
        found["folder"] |= {stat.S_IMODE(os.lstat(f"{above}/{name}").st_mode) for name in folders}
        found["file"] |= {stat.S_IMODE(os.lstat(f"{above}/{name}").st_mode) for name in names}
    return found


def write_all(root: Path) -> None:
    store = DirectoryStore(root)
    store.put(K, b"1")
    store.put(K, b"2")
    store.put(Key("a/b/c/d.json"), b"1", when=Absent())
    store.delete(Key("a/b/c/d.json"))
    store.put(Key("a/b/c/e.json"), b"1")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
@pytest.mark.parametrize(
    ("root_mode", "file_mode", "folder_mode"),
    [
        (None, 0o600, 0o700),
        (0o700, 0o600, 0o700),
        (0o755, 0o600, 0o700),
        (0o770, 0o660, 0o770),
        (0o2770, 0o660, 0o2770),
        (0o2775, 0o660, 0o2770),
        (0o777, 0o666, 0o777),
        (0o1777, 0o660, 0o770),
    ],
    ids=lambda mode: "new" if mode is None else f"{mode:o}",
)
def test_the_roots_mode_decides_who_takes_part(
    tmp_path: Path, umask: int, root_mode: int | None, file_mode: int, folder_mode: int
) -> None:
    root = tmp_path / "store"
    if root_mode is not None:
        root.mkdir()
        root.chmod(root_mode)
    before = os.umask(umask)
    try:
        write_all(root)
    finally:
        os.umask(before)
    assert modes(root) == {"file": {file_mode}, "folder": {folder_mode}}
    assert stat.S_IMODE(root.stat().st_mode) == (0o700 if root_mode is None else root_mode)


def test_another_user_can_neither_read_nor_stop_writers(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    for each in [tmp_path, *tmp_path.parents][:-2]:
        each.chmod(each.stat().st_mode | 0o055)
    write_all(root)

    def other() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        store = DirectoryStore(root)
        for act in (lambda: store.get(K), lambda: [*store.list()], lambda: store.put(K, b"")):
            with pytest.raises(Denied):
                act()
        for name in ("00", "01"):
            with pytest.raises(PermissionError):
                OsFiles.lock(str(root / ".limpet" / "locks" / name))

    join(fork(other))


def test_a_team_shares_a_folder(tmp_path: Path) -> None:
    """Two users of one group, each with a strict umask, on a root with mode 2770."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    root = tmp_path / "store"
    root.mkdir()
    os.chown(root, 0, 4242)
    root.chmod(0o2770)
    for each in [tmp_path, *tmp_path.parents][:-2]:
        each.chmod(each.stat().st_mode | 0o055)

    def member(uid: int) -> None:
        os.setgroups([4242])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(0o077)
        store = DirectoryStore(root)
        for i in range(40):
            mine = Key(f"q/pending/{uid}-{i}/task.json")
            store.put(mine, b"1", when=Absent())
            store.put(K, b"%d" % uid)
            for found in store.list("q"):
                with suppress(Missing):
                    store.get(found.key)
            if i % 3:
                store.delete(mine)

    join(fork(lambda: member(5001)), fork(lambda: member(5002)))
    found = modes(root)
    assert (found["file"], found["folder"]) == ({0o660}, {0o2770})


def test_what_version_0_1_left_open_is_closed(tmp_path: Path) -> None:
    """Its own folder with mode 755, lock files with 644, and the mark on folders that are durable."""
    for folder in ("", "tmp", "locks"):
        (tmp_path / ".limpet" / folder).mkdir()
        (tmp_path / ".limpet" / folder).chmod(0o755)
    lock = tmp_path / ".limpet" / "locks" / "1c"
    lock.touch(mode=0o644)
    object_path = tmp_path / K
    object_path.parent.mkdir(parents=True)
    object_path.parent.chmod(0o4755)
    object_path.write_bytes(b"old")
    tape = Tape(tmp_path)
    store = DirectoryStore(tmp_path, files=tape.files)
    store.put(K, b"new")
    assert stat.S_IMODE((tmp_path / ".limpet").stat().st_mode) == 0o700
    assert stat.S_IMODE(object_path.parent.stat().st_mode) == 0o755
    synced = ["fsync TEMP", "fsync queues/jobs/completed", "fsync queues/jobs", "fsync queues", "fsync ."]
    assert tape.take("fsync") == synced, "a copied mark proves nothing"
    store.put(K, b"newer")
    assert tape.take("fsync") == synced[:2]
