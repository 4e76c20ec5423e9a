"""Spark without a key of the bucket, on SeaweedFS: its requests are signed, or it gets a credential of the table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.test_clients_signing import TOKENS, client, forge, secret, service
from clients.test_clients_spark import SHADED, Spark
from support.servers.catalog import CatalogServer

__all__ = ["service"]

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

WAYS = {"signed": "remote-signing", "vended": "vended-credentials"}


@pytest.fixture(scope="module")
def spark(service: CatalogServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """A Spark with a catalog for each token and way: `etl_signed`, `etl_vended` and so on; none has a key."""
    catalogs = {
        f"{token}_{way}": {
            "uri": service.url,
            "token": secret(token),
            "io-impl": f"{SHADED}.aws.s3.S3FileIO",
            "header.X-Iceberg-Access-Delegation": name,
        }
        for token in TOKENS
        for way, name in WAYS.items()
    }
    made = Spark(None, tmp_path_factory.mktemp("spark"), catalogs)
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS)
def test_spark_writes_and_reads_without_a_key(service: CatalogServer, spark: Spark, way: str) -> None:
    own, name = f"etl_{way}.a", f"s_{way}"
    spark.run(
        f"CREATE TABLE {own}.{name} (id BIGINT, city STRING) USING iceberg PARTITIONED BY (city)",
        f"INSERT INTO {own}.{name} VALUES (1, 'a b'), (2, 'c+d'), (3, 'é')",
        f"DELETE FROM {own}.{name} WHERE id = 1",
        f"CREATE TABLE {own}.{name}_copy USING iceberg AS SELECT * FROM {own}.{name}",
        f"CREATE OR REPLACE TABLE {own}.{name}_copy USING iceberg AS SELECT id FROM {own}.{name}_copy",
    )
    reads = f"dashboard_{way}.a.{name}"
    assert spark.rows(f"SELECT id, city FROM {reads} ORDER BY id") == [[2, "c+d"], [3, "é"]]
    assert spark.rows(f"SELECT count(*) FROM {reads}.files") == [[2]]
    assert sorted(spark.rows(f"SELECT id FROM {reads}_copy")) == [[2], [3]]
    assert client(service, "dashboard").load_table(("a", name)).scan().count() == 2


@pytest.mark.parametrize("way", WAYS)
def test_rights_of_a_token_hold_for_the_data_in_spark(service: CatalogServer, spark: Spark, way: str) -> None:
    table = f"a.h_{way}"
    spark.run(f"CREATE TABLE etl_{way}.{table} (id BIGINT) USING iceberg", f"INSERT INTO etl_{way}.{table} VALUES (1)")
    refused = spark.error(f"INSERT INTO dashboard_{way}.{table} VALUES (2)")
    assert "403" in refused or "Forbidden" in refused
    assert "ForbiddenException" in spark.error(f"SELECT * FROM other_{way}.{table}")
    spark.run(
        f"CREATE TABLE other_{way}.b.h_{way} (id BIGINT) USING iceberg", f"INSERT INTO other_{way}.b.h_{way} VALUES (7)"
    )
    assert spark.rows(f"SELECT id FROM other_{way}.b.h_{way}") == [[7]]
    forge(client(service, "other").load_table(("b", f"h_{way}")), client(service, "etl").load_table(("a", f"h_{way}")))
    refused = spark.error(f"SELECT id FROM other_{way}.b.h_{way}")
    assert "403" in refused or "Forbidden" in refused, "the file of another table"
    assert spark.rows(f"SELECT id FROM dashboard_{way}.{table}") == [[1]]
