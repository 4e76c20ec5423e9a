"""Places that clients must be told about exactly as they are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from clients.conftest import Served, serving
from clients.ducks import attached
from clients.serving import Place


@pytest.mark.parametrize("folder", ["a b", "Ærø+å"])
def test_a_fleet_in_a_folder_with_an_odd_name(tmp_path: Path, folder: str) -> None:
    with serving(Place(str(tmp_path / folder)), tmp_path) as served:
        catalog = served.catalog()
        catalog.create_namespace("n")
        table = catalog.create_table(("n", "t"), pa.schema([("id", pa.int64())]))
        table.append(pa.table({"id": [1]}))
        with closing(attached(served)) as duck:
            duck.execute("INSERT INTO c.n.t VALUES (2)")
            assert duck.execute("SELECT sum(id) FROM c.n.t").fetchall() == [(3,)]
        assert sorted(served.catalog().load_table(("n", "t")).scan().to_arrow()["id"].to_pylist()) == [1, 2]
    data = [path for path in tmp_path.rglob("*.parquet") if "warehouse" in path.parts]
    assert len(data) == 2
    assert all(path.is_relative_to(tmp_path / folder / "warehouse") for path in data)


def test_no_key_of_the_server_is_told_to_clients(served: Served) -> None:
    """They bring their own; of the server they learn where the data lies."""
    told = {**served.catalog().properties}
    for name in ("uri", *served.place.keys):
        told.pop(name, None)
    secrets = [value for name, value in served.place.env.items() if "KEY" in name]
    assert [value for value in told.values() if value in secrets] == []
    if not served.place.is_local:
        assert told["s3.endpoint"].endswith(served.place.endpoint)
