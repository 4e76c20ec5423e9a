"""A real Dask cluster of two processes imports a file and compiles the index."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import limpet
from limpet.app.indexes import ImportJob
from limpet.cli.index.options import engine_of as engine
from limpet.index.files import Import
from limpet.index.formats import ChunkLimits
from limpet.kernel.errors import Invalid, Unavailable

distributed: Any = import_module("distributed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two worker processes; the address of their scheduler."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options, silence_logs=50) as made:
        yield str(made.scheduler_address)


def test_import_and_compile(cluster: str, tmp_path: Path) -> None:
    url = str(tmp_path / "fleet")
    package = {"fields": [{"name": "domain"}, {"name": "n", "type": "integer"}]}
    index = limpet.open(url).index("sites", package, key="domain")
    _ = index.manifest
    file = tmp_path / "sites.csv"
    file.write_text("domain,n\n" + "".join(f"d{n},{n}\n" for n in range(2000)))
    with engine(f"dask={cluster}", url) as place, file.open("rb") as stream:
        assert place.workers == 2
        work = Import(index, stream, file="sites.csv", format="csv", limits=ChunkLimits(records=500))
        job = ImportJob(url, "sites")
        assert [taken.records for taken in work.run(job, place.executor, 2)] == [500] * 4
        assert index.stats().packs.objects > 0
        report = index.compile(place.executor, full=True)
        assert (report.records, report.held, report.conflicts) == (2000, 0, 0)
    stats = index.stats()
    assert (stats.records, stats.packs.objects, stats.singles.objects) == (2000, 0, 0)
    assert {record["domain"]: record["n"] for record in index.scan()} == {f"d{n}": n for n in range(2000)}


def test_the_same_job_is_run_again(cluster: str, tmp_path: Path) -> None:
    """Dask answers a job that looks like an earlier one with its result, unless it is told not to."""
    with engine(f"dask={cluster}", str(tmp_path)) as place:
        assert place.executor is not None
        first, second = place.executor.submit(uuid4), place.executor.submit(uuid4)
        assert first.result() != second.result()


def test_an_error_of_a_worker_is_ours(cluster: str, tmp_path: Path) -> None:
    url = str(tmp_path / "fleet")
    index = limpet.open(url).index("sites", {"fields": [{"name": "domain"}]}, key="domain")
    file = tmp_path / "sites.csv"
    file.write_text("domain\na\nb,c\n")
    with engine(f"dask={cluster}", url) as place, file.open("rb") as stream:
        work = Import(index, stream, file="sites.csv", format="csv")
        with pytest.raises(Invalid, match="line 3: expected 1 field, got 2"):
            [*work.run(ImportJob(url, "sites"), place.executor, 2)]


def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.cli.index.options.CONNECT_S", 0.2)
    with (
        pytest.raises(Unavailable, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"),
        engine("dask=tcp://127.0.0.1:1", str(tmp_path)),
    ):
        pass
    with pytest.raises(Invalid, match="no other process sees memory://x"), engine("dask=tcp://x:1", "memory://x"):
        pass
