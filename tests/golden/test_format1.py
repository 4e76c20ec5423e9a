"""A fleet of format 1 as it was written once: still read, still guarded, and still written byte for byte."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import limpet
from limpet.cell import Fence
from limpet.errors import Corrupt, Held, LeaseLost, LimpetError, Unsupported
from limpet.lease import Lease, State

FORMAT1 = Path(__file__).parent / "format1"
MAKER = Path(__file__).resolve().parents[2] / "tools" / "make_golden.py"
REPORT = "locks/user/report.lock"


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("limpet_tools_make_golden", MAKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _maker()


def files(root: Path) -> dict[str, bytes]:
    """Every file, except the directory store's own locks and temp files."""
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".limpet/")}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy to open and write to."""
    shutil.copytree(FORMAT1, tmp_path / "fleet")
    return tmp_path / "fleet"


def test_today_the_same_bytes_are_written(tmp_path: Path) -> None:
    """An accidental change of the format fails here. A wanted one makes format2 beside this, and bumps CURRENT."""
    golden.build(tmp_path / "made")
    made, kept = files(tmp_path / "made"), files(FORMAT1)
    assert sorted(made) == sorted(kept)
    assert made == kept


def test_every_cell_reads_as_it_was_written(copy: Path) -> None:
    fleet = limpet.open(copy, read_only=True)
    for name, value in golden.CELLS.items():
        seen = fleet.cell(name).read()
        assert seen is not None, name
        assert seen.value == value
    counter, summary = fleet.cell("counter").read(), fleet.cell("summary").read()
    assert counter is not None
    assert summary is not None
    assert (counter.header.seq, len(counter.header.recent), counter.header.fence) == (20, 16, None)
    assert (summary.header.seq, len(summary.header.recent)) == (24, 16)
    assert summary.header.fence == Fence(REPORT, 3)


def test_every_lock_reads_as_it_was_left(copy: Path) -> None:
    fleet = limpet.open(copy, read_only=True)
    records = {seen.value.name: seen.value for seen in fleet.locks()}
    assert {name: record.token for name, record in records.items()} == golden.LOCKS
    assert [name for name, record in records.items() if record.state is State.HELD] == ["nightly"]
    assert records["report"].created_at.isoformat() == "2026-01-02T03:04:19+00:00"


def test_opening_and_reading_changes_nothing(copy: Path) -> None:
    before = files(copy)
    fleet = limpet.open(copy)
    for name in golden.CELLS:
        fleet.cell(name).read()
    assert fleet.meter.snapshot().requests == {"get": 1 + len(golden.CELLS)}
    assert files(copy) == before


def test_the_free_lock_is_taken_with_the_next_token_and_the_fence_still_holds(copy: Path) -> None:
    fleet = limpet.open(copy)
    cell = fleet.cell("summary")
    for token in (1, 2):
        with pytest.raises(LeaseLost, match="token 3"):
            cell.write("late", lease=Fence(REPORT, token))
    with pytest.raises(limpet.Invalid, match="guarded by"):
        cell.write("other lock", lease=Fence("locks/user/nightly.lock", 9))
    with fleet.lock("report").hold(wait_s=0) as lease:
        assert lease.token == 4
        cell.write("new", lease=lease)
    with pytest.raises(LeaseLost, match="token 4"):
        cell.write("late", lease=Fence(REPORT, 3))
    seen = limpet.open(copy).cell("summary").read()
    assert seen is not None
    assert (seen.value, seen.header.seq, seen.header.fence) == ("new", 25, Fence(REPORT, 4))


def test_the_held_lock_is_held(copy: Path) -> None:
    held = limpet.open(copy).lock("nightly").try_acquire()
    assert isinstance(held, Held)
    assert (held.by, held.token) == ("golden:1", 1)


def test_a_lock_with_a_nasty_name_goes_on(copy: Path) -> None:
    lease = limpet.open(copy).lock("../Ünïx/%2e ~#1").try_acquire()
    assert isinstance(lease, Lease)
    assert lease.token == 3


def test_an_unfenced_cell_is_swapped_on(copy: Path) -> None:
    fleet = limpet.open(copy)
    assert fleet.cell("counter").update(lambda n: (n or 0) + 1) is not None
    seen = fleet.cell("counter").read()
    assert seen is not None
    assert (seen.value, seen.header.seq) == (21, 21)


@pytest.mark.parametrize(
    ("file", "old", "new", "kind"),
    [
        ("limpet.json", b'"features":[]', b'"features":["zstd"]', Unsupported),
        ("limpet.json", b'"queue":1', b'"queue":2', Unsupported),
        ("limpet.json", b'"schema":1', b'"schema":2', Unsupported),
        ("limpet.json", b'"min_reader":1', b'"min_reader":2', Unsupported),
        ("limpet.json", b'"probe":{', b'"probe":[', Corrupt),
        ("limpet.json", b'"format":', b"", Corrupt),
        ("cells/counter.json", b'"schema":1', b'"schema":2', Unsupported),
        ("cells/counter.json", b'"seq":20', b'"seq":"20"', Corrupt),
        ("cells/counter.json", b'"value":20}', b'"value":20', Corrupt),
        ("cells/counter.json", b'"value":20', b'"value":NaN', Corrupt),
    ],
)
def test_what_is_newer_or_damaged_is_one_clear_error(
    copy: Path, file: str, old: bytes, new: bytes, kind: type[LimpetError]
) -> None:
    path = copy / file
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    before = files(copy)

    def use() -> None:
        limpet.open(copy).cell("counter").write(21)

    with pytest.raises(kind) as caught:
        use()
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert files(copy) == before


@pytest.mark.parametrize("size", [0, 1, 100, 274])
def test_a_truncated_limpet_json_is_corrupt_never_a_new_fleet(copy: Path, size: int) -> None:
    """F23: a read error is never an empty result."""
    path = copy / "limpet.json"
    path.write_bytes(path.read_bytes()[:size])
    before = files(copy)
    with pytest.raises(Corrupt, match=r"limpet\.json"):
        limpet.open(copy)
    assert files(copy) == before
