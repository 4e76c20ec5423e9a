"""A real Spark with Iceberg's own Java client: metadata tables, branches, names, concurrent replaces, both stores."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError

import limpet
from clients.conftest import Served
from clients.deletes import EQUALITY_LEFT, commit_deletes, puffin_deletes, with_equality_deletes
from clients.ducks import attached
from limpet.service.client import ServiceWriter

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

SHADED = "smfs.shaded.org.apache.iceberg"
JAR = "feature_store_pyspark/jars/sagemaker-feature-store-spark-sdk-3.5.jar"
"""It holds Iceberg's runtime for Spark 3.5 with other names for its classes; nothing else of it is used."""
REFERENCE = f"{SHADED}.hadoop.HadoopCatalog"
"""Iceberg's own catalog of files: what Spark does with it is what Spark does by itself."""


def jar() -> str | None:
    """Where the jar lies, if pyspark and it are installed."""
    found = find_spec("feature_store_pyspark") if find_spec("pyspark") else None
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent.parent / JAR
    return str(path) if path.exists() else None


NONE: Mapping[str, Mapping[str, str]] = {}
SHADED_PATH = b"smfs/shaded/"
LANG = b"org/apache/commons/lang3"
CONSTANT_BYTES = {
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 2,
    8: 2,
    9: 4,
    10: 4,
    11: 4,
    12: 4,
    15: 3,
    16: 2,
    17: 4,
    18: 4,
    19: 2,
    20: 2,
}
"""Sizes of a Java class file's constants, by their tags; 5 and 6 count twice."""


def completed(found: str, folder: Path) -> str:
    """The jar, and one with what it lacks for procedures: renamed classes of commons-lang3, which Spark has, and the
    name of Iceberg's data source."""
    [lang] = (Path(found).parents[2] / "pyspark" / "jars").glob("commons-lang3-*.jar")
    more = folder / "more.jar"
    with zipfile.ZipFile(lang) as old, zipfile.ZipFile(more, "w") as new:
        for name in old.namelist():
            if name.startswith(LANG.decode()) and name.endswith(".class"):
                new.writestr(SHADED_PATH.decode() + name, _renamed(old.read(name)))
        service = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
        new.writestr(service, f"{SHADED}.spark.source.IcebergSource\n")
    return f"{found},{more}"


def _renamed(data: bytes) -> bytes:
    """A class file whose texts name the renamed package."""
    count, at, n = struct.unpack_from(">H", data, 8)[0], 10, 1
    parts = [data[:at]]
    while n < count:
        tag = data[at]
        size = struct.unpack_from(">H", data, at + 1)[0] + 2 if tag == 1 else CONSTANT_BYTES[tag]
        part = data[at + 1 : at + 1 + size]
        if tag == 1:
            text = part[2:].replace(LANG, SHADED_PATH + LANG)
            part = struct.pack(">H", len(text)) + text
        parts.append(bytes([tag]) + part)
        at, n = at + 1 + size, n + (2 if tag in (5, 6) else 1)
    return b"".join(parts) + data[at:]


class Spark:
    """A Spark in a process of its own. Statements may name their catalog `c`, or one of `catalogs`."""

    def __init__(self, served: Served | None, folder: Path, catalogs: Mapping[str, Mapping[str, str]] = NONE) -> None:
        options = dict(catalogs)
        self._folder = folder
        if served is not None:
            kind = "hadoop.HadoopFileIO" if served.place.is_local else "aws.s3.S3FileIO"
            keys = {} if served.place.is_local else served.place.keys
            options["c"] = {"uri": served.url, "io-impl": f"{SHADED}.{kind}", **keys}
        found = jar()
        if found is None:
            pytest.skip("pyspark and its jar are not installed: `python3 tools/install.py test-full`")
        driver, jars = Path(__file__).with_name("spark_driver.py"), completed(found, folder)
        command = [sys.executable, str(driver), jars, json.dumps(options)]
        self._log = folder / "spark.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "AWS_REGION": "us-east-1"},
                text=True,
            )
        assert self._read() == "ready"

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"Spark ended:\n{self._log.read_text(errors='replace')[-4000:]}"
        return json.loads(line)

    def at_once(self, *statements: str) -> list[dict[str, Any]]:
        """The answers to statements that run at the same time."""
        assert self._process.stdin is not None
        print(json.dumps(statements), file=self._process.stdin, flush=True)
        answers: list[dict[str, Any]] = self._read()
        return answers

    def rows(self, statement: str) -> list[list[Any]]:
        """The rows of one statement that succeeds."""
        answer = self.at_once(statement)[0]
        assert "rows" in answer, f"{statement}\n{answer['error'][:2000]}"
        found: list[list[Any]] = answer["rows"]
        return found

    def run(self, *statements: str) -> None:
        """Statements that succeed, one after another."""
        for statement in statements:
            self.rows(statement)

    def error(self, statement: str) -> str:
        """What one statement fails with."""
        answer = self.at_once(statement)[0]
        assert "error" in answer, f"{statement} succeeded: {answer['rows']}"
        return str(answer["error"])

    def reference(self, table: str) -> str:
        """The current metadata of a table of the catalog `h`."""
        versions = (self._folder / "h" / table / "metadata").glob("v*.metadata.json")
        return max(versions, key=lambda path: int(path.name[1:].partition(".")[0])).read_text()

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def _sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Spark]]:
    """One for each served catalog: a start takes ten seconds."""
    found: dict[str, Spark] = {}
    yield found
    for spark in found.values():
        spark.close()


@pytest.fixture
def spark(_sparks: dict[str, Spark], served: Served, tmp_path_factory: pytest.TempPathFactory) -> Spark:
    if served.url not in _sparks:
        folder = tmp_path_factory.mktemp("spark")
        _sparks[served.url] = Spark(
            served, folder, {"h": {"catalog-impl": REFERENCE, "warehouse": f"file://{folder}/h"}}
        )
    return _sparks[served.url]


@pytest.fixture
def space(spark: Spark) -> str:
    """A namespace of the test's own, as Spark names it."""
    name = f"n{uuid4().hex[:12]}"
    spark.run(f"CREATE NAMESPACE c.{name}")
    return f"c.{name}"


def test_rows_go_in_and_come_out_through_spark_and_pyiceberg(
    spark: Spark, space: str, catalog: RestCatalog, served: Served
) -> None:
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT, city STRING) USING iceberg PARTITIONED BY (bucket(4, id))",
        f"INSERT INTO {space}.t VALUES (1, 'Oslo'), (2, 'Ærø')",
        f"INSERT INTO {space}.t VALUES (3, NULL)",
        f"DELETE FROM {space}.t WHERE id = 1",
        f"UPDATE {space}.t SET city = 'Ribe' WHERE id = 3",
        f"ALTER TABLE {space}.t ADD COLUMN n INT",
    )
    assert spark.rows(f"SELECT id, city, n FROM {space}.t ORDER BY id") == [[2, "Ærø", None], [3, "Ribe", None]]
    table = catalog.load_table((space.removeprefix("c."), "t"))
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [2, 3]
    assert table.properties["write.parquet.compression-codec"] == "zstd"
    if served.place.is_local:
        folder = Path(table.location().removeprefix("file://"))
        written = [pq.ParquetFile(path).metadata for path in folder.rglob("data/**/*.parquet")]
        assert {file.row_group(0).column(0).compression for file in written} == {"ZSTD"}
    spark.run(f"DROP TABLE {space}.t PURGE")


def test_format_version_3(spark: Spark, space: str, catalog: RestCatalog) -> None:
    """Row lineage and deletion vectors, of a new table and of one that is upgraded."""
    name = space.removeprefix("c.")
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT, city STRING) USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read')",
        f"CREATE TABLE {space}.u (id BIGINT) USING iceberg",
        f"INSERT INTO {space}.u VALUES (1)",
        f"ALTER TABLE {space}.u SET TBLPROPERTIES ('format-version' = '3')",
        f"INSERT INTO {space}.u VALUES (2), (3)",
        f"INSERT INTO {space}.t SELECT id, concat('city ', id) FROM range(0, 10, 1, 1)",
        f"DELETE FROM {space}.t WHERE id IN (2, 3)",
        f"UPDATE {space}.t SET city = 'Ribe' WHERE id = 4",
    )
    assert spark.rows(f"SELECT count(*), max(city) FROM {space}.t WHERE id < 5") == [[3, "city 1"]]
    assert spark.rows(f"SELECT id FROM {space}.u ORDER BY id") == [[1], [2], [3]]
    table, upgraded = (catalog.load_table((name, each)).metadata for each in "tu")
    assert (upgraded.snapshots[0].first_row_id, upgraded.snapshots[0].added_rows) == (None, None)
    for metadata, least in ((table, 10), (upgraded, 2)):
        assert metadata.format_version == 3
        last = metadata.snapshots[-1]
        assert metadata.next_row_id == last.first_row_id + last.added_rows >= least
    deletes = catalog.load_table((name, "t")).inspect.delete_files().to_pylist()
    assert {each["file_format"] for each in deletes} == {"PUFFIN"}
    assert catalog.load_table((name, "t")).scan().to_arrow().num_rows == 8


def test_row_ids_of_branches_rollbacks_and_replaces(spark: Spark, space: str, catalog: RestCatalog) -> None:
    """No two snapshots have a row id in common: on other branches, at the same time, after a rollback, a cherry-pick, a
    replace of the table."""
    name = f"{space.removeprefix('c.')}.t"
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')",
        f"INSERT INTO {space}.t VALUES (1), (2), (3)",
        f"ALTER TABLE {space}.t CREATE BRANCH wip",
        f"INSERT INTO {space}.t.branch_wip VALUES (4), (5)",
    )
    [[first]] = spark.rows(f"SELECT snapshot_id FROM {space}.t.refs WHERE name = 'main'")
    [[picked]] = spark.rows(f"SELECT snapshot_id FROM {space}.t.refs WHERE name = 'wip'")
    into = [f"INSERT INTO {space}.t{branch} VALUES (6), (7)" for branch in ("", ".branch_wip", "", ".branch_wip")]
    assert not [each for each in spark.at_once(*into) if "error" in each]
    spark.run(
        f"CALL c.system.rollback_to_snapshot('{name}', {first})",
        f"INSERT INTO {space}.t VALUES (8)",
        f"CALL c.system.cherrypick_snapshot('{name}', {picked})",
        f"MERGE INTO {space}.t.branch_wip t USING (SELECT 4L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        f"ALTER TABLE {space}.t CREATE TAG kept",
    )
    assert spark.rows(f"SELECT id FROM {space}.t ORDER BY id") == [[1], [2], [3], [4], [5], [8]]
    found = spark.rows(f"SELECT id FROM {space}.t VERSION AS OF 'wip' ORDER BY id")
    assert found == [[1], [2], [3], [5], [6], [6], [7], [7]]
    spark.run(f"CREATE OR REPLACE TABLE {space}.t USING iceberg AS SELECT id FROM range(20, 25, 1, 1)")
    metadata = catalog.load_table(name).metadata
    spans = sorted((each.first_row_id, each.first_row_id + each.added_rows) for each in metadata.snapshots)
    assert len(spans) >= 10
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert metadata.next_row_id == max(end for _, end in spans)
    assert spark.rows(f"SELECT count(*) FROM {space}.t VERSION AS OF 'kept'") == [[6]]


def test_spark_and_duckdb_change_a_table_of_version_3(
    spark: Spark, space: str, served: Served, catalog: RestCatalog
) -> None:
    """Each reads the other's rows and deletion vectors. Row ids are never given twice.

    Iceberg 1.9 gives rows new ids when it rewrites or updates them (see the next test), and its vectorized reader shows
    the first id of a file for all of its rows.
    """
    name = space.removeprefix("c.")
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT, city STRING) USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.delete.mode' = 'merge-on-read', 'read.parquet.vectorization.enabled' = 'false')",
        f"INSERT INTO {space}.t VALUES (1, 'Oslo'), (2, 'Ærø'), (3, 'Ribe')",
        f"INSERT INTO {space}.t VALUES (4, 'Bodø')",
        f"DELETE FROM {space}.t WHERE id = 1",
    )
    before = spark.rows(f"SELECT id, _row_id, _last_updated_sequence_number FROM {space}.t ORDER BY id")
    assert len({row[1] for row in before}) == 3
    with closing(attached(served)) as duck:
        assert duck.execute(f"SELECT id, city FROM c.{name}.t ORDER BY id").fetchall() == [
            (2, "Ærø"),
            (3, "Ribe"),
            (4, "Bodø"),
        ]
        duck.execute(f"INSERT INTO c.{name}.t VALUES (5, 'Visby')")
        duck.execute(f"DELETE FROM c.{name}.t WHERE id = 2")
    assert spark.rows(f"SELECT id FROM {space}.t ORDER BY id") == [[3], [4], [5]]
    spark.run(
        f"CALL c.system.rewrite_data_files(table => '{name}.t', options => map('rewrite-all', 'true'))",
        f"UPDATE {space}.t SET city = 'Ribe!' WHERE id = 3",
    )
    rows = spark.rows(f"SELECT id, city, _row_id FROM {space}.t ORDER BY id")
    assert [row[:2] for row in rows] == [[3, "Ribe!"], [4, "Bodø"], [5, "Visby"]]
    assert len({row[2] for row in rows}) == 3
    metadata = catalog.load_table((name, "t")).metadata
    assert max(row[2] for row in rows) < metadata.next_row_id
    spans = [(each.first_row_id, each.first_row_id + each.added_rows) for each in metadata.snapshots]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "each snapshot has ids of its own"


@pytest.mark.parametrize("served", ["directory"], indirect=True)
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_row_lineage_is_that_of_the_reference_catalog(
    spark: Spark, space: str, catalog: RestCatalog, mode: str
) -> None:
    """The same statements in Limpet and in Iceberg's own catalog: after each of them the same rows, row ids, sequence
    numbers, snapshots and files. With Iceberg 1.9 updates and rewrites, even of manifests only, change row ids in both.
    """
    name = space.removeprefix("c.")
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    properties = f"'format-version' = '2', 'read.parquet.vectorization.enabled' = 'false', {modes}"
    both = (f"c.{name}.t", f"h.{name}.t")
    spark.run(f"CREATE NAMESPACE h.{name}")
    for table in both:
        spark.run(
            f"CREATE TABLE {table} (id BIGINT, city STRING) USING iceberg TBLPROPERTIES ({properties})",
            f"INSERT INTO {table} SELECT id, concat('old ', id) FROM range(100, 103, 1, 1)",
            f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')",
        )
    statements = (
        "INSERT INTO {t} SELECT id, concat('city ', id) FROM range(0, 10, 1, 1)",
        "INSERT INTO {t} VALUES (10, 'Bodø')",
        "DELETE FROM {t} WHERE id IN (2, 3)",
        "UPDATE {t} SET city = 'Ribe' WHERE id = 4",
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (5L, 'Ærø'), (6L, ''), (20L, 'Visby') AS s(id, city)) s "
        "ON t.id = s.id WHEN MATCHED AND s.city = '' THEN DELETE WHEN MATCHED THEN UPDATE SET city = s.city "
        "WHEN NOT MATCHED THEN INSERT *",
        # sorted: else the order of the files, whose names are random, decides which row gets which id
        "CALL {c}.system.rewrite_data_files(table => '{n}.t', strategy => 'sort', sort_order => 'id', "
        "options => map('rewrite-all', 'true'))",
        "INSERT INTO {t} VALUES (30, 'Oslo')",
        "CALL {c}.system.rewrite_manifests('{n}.t')",
    )
    ids = []
    for statement in statements:
        found = []
        for table in both:
            spark.run(statement.format(t=table, c=table[0], n=name))
            query = f"SELECT id, city, _row_id, _last_updated_sequence_number FROM {table} ORDER BY id"
            files = f"SELECT content, record_count, file_format FROM {table}.files ORDER BY content, record_count"
            found.append((spark.rows(query), spark.rows(files)))
        assert found[0] == found[1], statement
        ids.append({row[0]: row[2] for row in found[0][0]})
    table = catalog.load_table((name, "t")).metadata
    reference = json.loads(spark.reference(f"{name}/t"))
    spans = [(each.get("first-row-id"), each.get("added-rows")) for each in reference["snapshots"]]
    assert [(each.first_row_id, each.added_rows) for each in table.snapshots] == spans
    assert table.next_row_id == reference["next-row-id"] == sum(added or 0 for _, added in spans)
    assert ids[-1][0] != ids[0][0], "Iceberg 1.9 alone changes the id of a row that nobody has updated"


@pytest.mark.parametrize("served", ["directory"], indirect=True)
def test_a_compaction_by_limpet_keeps_what_spark_sees(spark: Spark, space: str, served: Served) -> None:
    """Partitions, deletion vectors, an upgrade from version 2: the same rows, row ids and sequence numbers; then Spark
    goes on with the table."""
    name = space.removeprefix("c.")
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT, city STRING) USING iceberg PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ("
        "'read.parquet.vectorization.enabled' = 'false', 'write.delete.mode' = 'merge-on-read')",
        f"INSERT INTO {space}.t SELECT id, 'old' FROM range(100, 110, 1, 1)",
        f"DELETE FROM {space}.t WHERE id = 101",
        f"ALTER TABLE {space}.t SET TBLPROPERTIES ('format-version' = '3')",
        *(f"INSERT INTO {space}.t SELECT id, 'new' FROM range({n}, {n + 10}, 1, 1)" for n in (0, 10, 20)),
        f"DELETE FROM {space}.t WHERE id % 7 = 3",
    )
    query = f"SELECT id, city, _row_id, _last_updated_sequence_number FROM {space}.t ORDER BY id"
    before = spark.rows(query)
    assert len({row[2] for row in before}) == len(before)
    table = limpet.open(served.place.url).maintain((name,), "t", through=ServiceWriter(served.url))
    assert table.compact(min_files=2).new_files == 2
    assert spark.rows(query) == before
    assert spark.rows(f"SELECT content FROM {space}.t.files") == [[0], [0]]
    spark.run(f"INSERT INTO {space}.t VALUES (50, 'later')", f"DELETE FROM {space}.t WHERE id = 5")
    later = spark.rows(query)
    assert [row for row in later if row[0] != 50] == [row for row in before if row[0] != 5]
    assert max(later, key=lambda row: row[2])[0] == 50
    assert table.compact(min_files=2).files
    assert spark.rows(query) == later


def test_deletes_that_the_plan_tests_make_are_what_spark_reads(
    spark: Spark, space: str, catalog: RestCatalog, served: Served
) -> None:
    """The reference for `tests/clients/test_clients_plan.py`: DuckDB 1.5.5 applies the equality deletes of a partition
    to rows of another one too."""
    name, through = space.removeprefix("c."), ServiceWriter(served.url)
    with_equality_deletes(catalog, through, name)
    assert spark.rows(f"SELECT id FROM {space}.t ORDER BY id") == [[id_] for id_ in EQUALITY_LEFT]
    spark.run(
        f"CREATE TABLE {space}.v (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')",
        *(f"INSERT INTO {space}.v SELECT id FROM range({n}, {n + 10}, 1, 1)" for n in (0, 10, 20)),
    )
    table = catalog.load_table((name, "v"))
    urls = {task.file.file_path: [n, n + 1] for n, task in enumerate(table.scan().plan_files())}
    commit_deletes(table, through, 7, puffin_deletes(table, "gone", urls))
    left = catalog.load_table((name, "v")).scan().to_arrow()["id"].to_pylist()
    assert spark.rows(f"SELECT id FROM {space}.v ORDER BY id") == [[id_] for id_ in sorted(left)]
    assert len(left) == 24


def test_ddl(spark: Spark, space: str, catalog: RestCatalog) -> None:
    """Columns, partitions, sort orders, properties, comments, renames, CTAS, namespaces."""
    name = space.removeprefix("c.")
    spark.run(
        f"CREATE TABLE {space}.t (id INT NOT NULL COMMENT 'key', city STRING, at TIMESTAMP, place STRUCT<x: INT>) "
        "USING iceberg PARTITIONED BY (days(at)) TBLPROPERTIES ('k' = 'v')",
        f"INSERT INTO {space}.t VALUES (1, 'Oslo', TIMESTAMP '2026-01-02 03:04:05', named_struct('x', 7))",
        f"ALTER TABLE {space}.t ADD COLUMNS (n INT AFTER id, place.y DOUBLE)",
        f"ALTER TABLE {space}.t ALTER COLUMN id TYPE BIGINT",
        f"ALTER TABLE {space}.t RENAME COLUMN city TO town",
        f"ALTER TABLE {space}.t ADD PARTITION FIELD bucket(4, id)",
        f"ALTER TABLE {space}.t REPLACE PARTITION FIELD days(at) WITH months(at)",
        f"ALTER TABLE {space}.t WRITE ORDERED BY town DESC",
        f"ALTER TABLE {space}.t SET IDENTIFIER FIELDS id",
        f"ALTER TABLE {space}.t UNSET TBLPROPERTIES ('k')",
        f"COMMENT ON TABLE {space}.t IS 'towns'",
        f"INSERT INTO {space}.t VALUES (2, 3, 'Ribe', TIMESTAMP '2026-02-02 03:04:05', named_struct('x', 8, 'y', 1.5))",
        f"ALTER TABLE {space}.t DROP COLUMN n",
        f"ALTER TABLE {space}.t RENAME TO {name}.u",
        f"CREATE TABLE {space}.copy USING iceberg PARTITIONED BY (town) AS SELECT id, town FROM {space}.u",
        f"ALTER NAMESPACE {space} SET PROPERTIES ('team' = 'me')",
    )
    assert spark.rows(f"SELECT id, town, place.y FROM {space}.u ORDER BY id") == [[1, "Oslo", None], [2, "Ribe", 1.5]]
    table = catalog.load_table((name, "u"))
    assert [field.name for field in table.schema().fields] == ["id", "town", "at", "place"]
    assert table.schema().identifier_field_names() == {"id"}
    assert [str(field.transform) for field in table.spec().fields] == ["bucket[4]", "month"]
    assert len(table.sort_order().fields) == 1
    assert table.properties["comment"] == "towns"
    assert "k" not in table.properties
    assert catalog.load_namespace_properties(name)["team"] == "me"
    assert sorted(row[1] for row in spark.rows(f"SHOW TABLES IN {space}")) == ["copy", "u"]
    spark.run(f"TRUNCATE TABLE {space}.copy", f"DROP TABLE {space}.copy PURGE", f"DROP TABLE {space}.u PURGE")
    spark.run(f"DROP NAMESPACE {space}")
    assert (name,) not in catalog.list_namespaces()


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_merge_and_overwrite(spark: Spark, space: str, mode: str) -> None:
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT, n INT) USING iceberg PARTITIONED BY (bucket(2, id)) "
        f"TBLPROPERTIES ('write.merge.mode' = '{mode}')",
        f"INSERT INTO {space}.t VALUES (1, 1), (2, 2), (3, 3)",
        f"MERGE INTO {space}.t USING (SELECT * FROM VALUES (2L, 20), (3L, 0), (4L, 40) AS s(id, n)) s ON t.id = s.id "
        "WHEN MATCHED AND s.n = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET n = s.n "
        "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = -1",
    )
    assert spark.rows(f"SELECT id, n FROM {space}.t ORDER BY id") == [[1, -1], [2, 20], [4, 40]]
    spark.run(f"INSERT OVERWRITE {space}.t VALUES (9, 9)")
    assert spark.rows(f"SELECT id, n FROM {space}.t") == [[9, 9]]


def test_time_travel(spark: Spark, space: str) -> None:
    """By snapshot, time, tag and branch; a branch is fast-forwarded, a snapshot is picked, changes are read."""
    name = f"{space.removeprefix('c.')}.t"
    spark.run(f"CREATE TABLE {space}.t (id BIGINT) USING iceberg")
    spark.run(*[f"INSERT INTO {space}.t VALUES ({n})" for n in range(3)])
    ids, times = zip(
        *spark.rows(f"SELECT snapshot_id, cast(committed_at AS STRING) FROM {space}.t.snapshots ORDER BY committed_at"),
        strict=True,
    )
    count = "SELECT count(*) FROM"
    assert spark.rows(f"{count} {space}.t VERSION AS OF {ids[0]}") == [[1]]
    assert spark.rows(f"{count} {space}.t TIMESTAMP AS OF '{times[1]}'") == [[2]]
    assert "Cannot find a snapshot older than" in spark.error(f"{count} {space}.t TIMESTAMP AS OF '2001-01-01'")
    spark.run(
        f"ALTER TABLE {space}.t CREATE TAG kept AS OF VERSION {ids[1]} RETAIN 9 DAYS",
        f"ALTER TABLE {space}.t CREATE OR REPLACE BRANCH next",
        f"INSERT INTO {space}.t.branch_next VALUES (3)",
        f"CALL c.system.fast_forward('{name}', 'main', 'next')",
        f"CALL c.system.create_changelog_view(table => '{name}', changelog_view => 'changes')",
    )
    assert spark.rows(f"{count} {space}.t VERSION AS OF 'kept'") == [[2]]
    assert spark.rows(f"{count} {space}.t") == [[4]]
    assert spark.rows("SELECT id, _change_type FROM changes ORDER BY id") == [[n, "INSERT"] for n in range(4)]
    spark.run(f"CALL c.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00')")
    assert spark.rows(f"{count} {space}.t VERSION AS OF 'kept'") == [[2]], "expiry keeps what a tag needs"


def test_add_files(spark: Spark, space: str, catalog: RestCatalog, served: Served) -> None:
    """Files that another program wrote into the table's folder are added. In a bucket Spark would need Hadoop's S3 file
    system to list them, which is not installed here; PyIceberg's `add_files` does it there."""
    name = f"{space.removeprefix('c.')}.t"
    spark.run(f"CREATE TABLE {space}.t (id BIGINT) USING iceberg")
    table = catalog.load_table(name)
    file = f"{table.location()}/added/1.parquet"
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    with table.io.new_output(file).create() as out:
        pq.write_table(rows, out)
    if served.place.is_local:
        folder = file.removeprefix("file://").rpartition("/")[0]
        spark.run(f"CALL c.system.add_files(table => '{name}', source_table => '`parquet`.`{folder}`')")
    else:
        table.add_files([file])
    assert spark.rows(f"SELECT id FROM {space}.t ORDER BY id") == [[1], [2]]


@pytest.mark.parametrize("odd", ["a b", "a+b", "a.b", "Ærø 漢字", "50% off", "a'b"])
def test_odd_names(spark: Spark, space: str, catalog: RestCatalog, odd: str) -> None:
    """A nested namespace, a table in it, its metadata tables, its columns, a rename."""
    name = space.removeprefix("c.")
    inner, table = f"{space}.`{odd}`", f"{space}.`{odd}`.`{odd}`"
    spark.run(
        f"CREATE NAMESPACE {inner}",
        f"CREATE TABLE {table} (`{odd}` BIGINT, id BIGINT) USING iceberg PARTITIONED BY (truncate(10, `{odd}`))",
        f"INSERT INTO {table} VALUES (1, 2), (11, 3)",
        f"DELETE FROM {table} WHERE `{odd}` = 11",
    )
    assert spark.rows(f"SELECT `{odd}`, id FROM {table}") == [[1, 2]]
    assert len(spark.rows(f"SELECT * FROM {table}.snapshots")) == 2
    assert [row[1] for row in spark.rows(f"SHOW TABLES IN {inner}")] == [odd]
    assert catalog.load_table((name, odd, odd)).scan().to_arrow().to_pylist() == [{odd: 1, "id": 2}]
    spark.run(f"ALTER TABLE {table} RENAME TO {name}.`{odd} too`", f"DROP NAMESPACE {inner}")
    assert spark.rows(f"SELECT id FROM {space}.`{odd} too`") == [[2]]
    spark.run(f"DROP TABLE {space}.`{odd} too` PURGE")


def test_metadata_tables_and_branches(spark: Spark, space: str) -> None:
    spark.run(f"CREATE TABLE {space}.t (id BIGINT) USING iceberg", f"INSERT INTO {space}.t VALUES (1)")
    assert len(spark.rows(f"SELECT snapshot_id FROM {space}.t.snapshots")) == 1
    assert [row[0] for row in spark.rows(f"SELECT name FROM {space}.t.refs")] == ["main"]
    for name in (
        *("history", "files", "data_files", "entries", "manifests", "partitions", "metadata_log_entries"),
        *("all_data_files", "all_files", "all_entries", "all_manifests"),
    ):
        assert spark.rows(f"SELECT * FROM {space}.t.{name}"), name
    for name in ("delete_files", "all_delete_files", "position_deletes"):
        assert spark.rows(f"SELECT * FROM {space}.t.{name}") == [], name
    spark.run(
        f"ALTER TABLE {space}.t CREATE BRANCH wip",
        f"INSERT INTO {space}.t.branch_wip VALUES (2)",
        f"ALTER TABLE {space}.t CREATE TAG v1",
    )
    assert spark.rows(f"SELECT id FROM {space}.t ORDER BY id") == [[1]]
    assert spark.rows(f"SELECT id FROM {space}.t.branch_wip ORDER BY id") == [[1], [2]]
    assert spark.rows(f"SELECT id FROM {space}.t VERSION AS OF 'v1'") == [[1]]
    spark.run(f"ALTER TABLE {space}.t DROP BRANCH wip")
    assert [row[0] for row in spark.rows(f"SELECT name FROM {space}.t.refs ORDER BY name")] == ["main", "v1"]


def test_procedures(spark: Spark, space: str, catalog: RestCatalog, served: Served) -> None:
    """CALL: compaction, manifests, a rollback, expiry, orphans, statistics."""
    name = f"{space.removeprefix('c.')}.t"
    spark.run(f"CREATE TABLE {space}.t (id BIGINT) USING iceberg")
    spark.run(*[f"INSERT INTO {space}.t VALUES ({n})" for n in range(3)])
    call = "CALL c.system."
    [[rewritten, made, *_]] = spark.rows(
        f"{call}rewrite_data_files(table => '{name}', options => map('min-input-files', '2'))"
    )
    assert (rewritten, made) == (3, 1)
    spark.run(f"{call}rewrite_manifests('{name}')")
    before = [row[0] for row in spark.rows(f"SELECT snapshot_id FROM {space}.t.snapshots ORDER BY committed_at")]
    assert len(before) == 5
    spark.run(f"{call}rollback_to_snapshot('{name}', {before[0]})")
    assert spark.rows(f"SELECT id FROM {space}.t") == [[0]]
    spark.run(f"{call}set_current_snapshot('{name}', {before[-1]})")
    spark.run(f"INSERT INTO {space}.t VALUES (3)")
    spark.run(f"{call}expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00')")
    assert len(spark.rows(f"SELECT snapshot_id FROM {space}.t.snapshots")) == 1
    if served.place.is_local:  # in a bucket it lists through Hadoop's S3 file system, which is not installed here
        assert spark.rows(f"{call}remove_orphan_files(table => '{name}', dry_run => true)") == []
    spark.run(f"{call}compute_table_stats('{name}')")
    assert spark.rows(f"SELECT id FROM {space}.t ORDER BY id") == [[0], [1], [2], [3]]
    table = catalog.load_table(name)
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [0, 1, 2, 3]
    assert table.metadata.statistics


def test_what_is_missing_is_missing(spark: Spark, space: str) -> None:
    spark.run(
        "DROP TABLE IF EXISTS c.nowhere.t",
        f"DROP TABLE IF EXISTS {space}.t",
        f"DROP VIEW IF EXISTS {space}.v",
        "DROP VIEW IF EXISTS c.nowhere.v",
        f"CREATE TABLE IF NOT EXISTS {space}.t (id BIGINT) USING iceberg",
        f"CREATE TABLE IF NOT EXISTS {space}.t (id BIGINT) USING iceberg",
    )
    assert "TABLE_OR_VIEW_NOT_FOUND" in spark.error("SELECT * FROM c.nowhere.t")
    assert "ALREADY_EXISTS" in spark.error(f"CREATE TABLE {space}.t (id BIGINT) USING iceberg")
    assert spark.rows(f"SHOW TABLES IN {space}") == [[space.removeprefix("c."), "t", False]]


def test_names_with_a_space_and_a_plus_never_meet(spark: Spark, space: str, catalog: RestCatalog) -> None:
    """With both, Spark wrote into and dropped the wrong one of them in 0.1."""
    name = space.removeprefix("c.")
    spark.run(f"CREATE TABLE {space}.`a b` (id BIGINT) USING iceberg", f"INSERT INTO {space}.`a b` VALUES (1)")
    assert "confuse it with" in spark.error(f"CREATE TABLE {space}.`a+b` (id BIGINT) USING iceberg")
    schema = catalog.load_table((name, "a b")).schema()
    with pytest.raises(BadRequestError, match="confuse it with"):
        catalog.create_table((name, "a+b"), schema)
    assert catalog.load_table((name, "a b")).scan().to_arrow().num_rows == 1
    assert not catalog.table_exists((name, "a+b"))
    spark.run(f"DROP TABLE IF EXISTS {space}.`a+b`")
    assert catalog.table_exists((name, "a b"))
    spark.run(f"DROP TABLE {space}.`a b`")
    catalog.create_table((name, "a+b"), schema)
    spark.run(f"DROP TABLE IF EXISTS {space}.`a b`", f"INSERT INTO {space}.`a+b` VALUES (7)")
    assert catalog.load_table((name, "a+b")).scan().to_arrow().column("id").to_pylist() == [7]


def test_replaces_at_once_all_end(spark: Spark, space: str) -> None:
    """Each replaces the table as it finds it; none fails for good because another one was first."""
    spark.run(f"CREATE TABLE {space}.t (id BIGINT) USING iceberg", f"INSERT INTO {space}.t VALUES (0)")
    statement = f"CREATE OR REPLACE TABLE {space}.t USING iceberg AS SELECT {{}} AS id"
    for round_ in range(3):
        answers = spark.at_once(*(statement.format(f"{10 * round_ + n}L") for n in range(4)))
        assert [each.get("error", "")[:500] for each in answers] == [""] * 4
    found = spark.rows(f"SELECT id FROM {space}.t")
    assert found in [[[20 + n]] for n in range(4)]
    numbers = spark.rows(f"SELECT count(*) FROM {space}.t.snapshots")
    assert numbers[0][0] >= 1
    spark.run(f"INSERT INTO {space}.t VALUES (99)")
    assert [99] in spark.rows(f"SELECT id FROM {space}.t")


def test_views(spark: Spark, space: str) -> None:
    spark.run(
        f"CREATE TABLE {space}.t (id BIGINT) USING iceberg",
        f"INSERT INTO {space}.t VALUES (1), (2)",
        f"CREATE VIEW {space}.v AS SELECT id + 1 AS next FROM {space}.t",
    )
    assert spark.rows(f"SELECT next FROM {space}.v ORDER BY next") == [[2], [3]]
    spark.run(
        f"CREATE OR REPLACE VIEW {space}.v (same COMMENT 'as it is') COMMENT 'all' TBLPROPERTIES ('k' = 'v') "
        f"AS SELECT id FROM {space}.t",
        f"ALTER VIEW {space}.v SET TBLPROPERTIES ('l' = 'w')",
    )
    assert spark.rows(f"SELECT same FROM {space}.v ORDER BY same") == [[1], [2]]
    assert {("k", "v"), ("l", "w")} <= {tuple(row) for row in spark.rows(f"SHOW TBLPROPERTIES {space}.v")}
    assert [row[1] for row in spark.rows(f"SHOW VIEWS IN {space}") if row[0]] == ["v"]
    spark.run(f"ALTER VIEW {space}.v RENAME TO {space}.`w x`")
    assert spark.rows(f"SELECT count(*) FROM {space}.`w x`") == [[2]]
    spark.run(f"ALTER VIEW {space}.`w x` RENAME TO {space}.v")
    spark.run(f"DROP VIEW {space}.v")
