"""kill -9 in the middle of publications and maintenance of a table: what was acknowledged is readable afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadataV3

import limpet

pytestmark = pytest.mark.timeout(300)

KILLS = 2
PROGRAM = """
import sys
from datetime import timedelta
import limpet

fleet = limpet.open(sys.argv[1])
index = fleet.index("recs", {"fields": [{"name": "id", "type": "string"}]}, key="id")
table = fleet.maintain(("indexes",), "recs", wait_s=60)
for n in range(int(sys.argv[2]), 1_000_000):
    index.put({"id": f"r{n}"})
    fleet.publish_index("recs", wait_s=60)
    if n == 0 and sys.argv[3] == "3":
        upgrade = {"requirements": [], "updates": [{"action": "upgrade-format-version", "format-version": 3}]}
        with fleet.lead_catalog(wait_s=60) as catalog:
            catalog.commit_table(("indexes",), "recs", upgrade)
    print(n, flush=True)
    table.expire(max_age=timedelta(0))
    table.compact(min_files=2)
    table.remove_orphans(grace=timedelta(0), quiesced=True)
"""


@pytest.mark.parametrize("version", [2, 3])
def test_a_killed_maintenance_loses_no_row(tmp_path: Path, version: int) -> None:
    """In format version 3 it gives no row id twice either: each snapshot has ids of its own."""
    url, acknowledged = str(tmp_path / "fleet"), -1
    for nth in range(KILLS):
        command = [sys.executable, "-c", PROGRAM, url, str(acknowledged + 1), str(version)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(3 + nth):
                acknowledged = int(process.stdout.readline())
            time.sleep(random.Random(nth).uniform(0, 0.3))
            process.kill()
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        with limpet.open(url) as fleet:
            location = fleet.catalog().load_table(("indexes",), "recs").metadata_location
        table = StaticTable.from_metadata(str(location))
        for snapshot in table.snapshots():
            table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        rows = {*table.scan().to_arrow()["id"].to_pylist()}
        assert {f"r{n}" for n in range(acknowledged + 1)} <= rows
        assert table.metadata.format_version == version
        if isinstance(table.metadata, TableMetadataV3):
            spans = [(each.first_row_id or 0, each.added_rows or 0) for each in table.snapshots()]
            assert all(first + added <= later for (first, added), (later, _) in pairwise(spans))
            assert (table.metadata.next_row_id or 0) >= sum(spans[-1])
