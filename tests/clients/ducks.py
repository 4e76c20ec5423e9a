"""DuckDB with its iceberg extension, as it comes with the Python packages: nothing is fetched."""

from __future__ import annotations

import importlib
from pathlib import Path

import duckdb

from clients.conftest import Served

__all__ = ["attached", "connect"]

EXTENSIONS = ("httpfs", "avro", "iceberg")


def connect() -> duckdb.DuckDBPyConnection:
    """A connection that can read and write Iceberg, and fetches no extension by itself."""
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "2"}
    )
    for name in EXTENSIONS:
        folder = importlib.import_module(f"duckdb_extension_{name}").__path__[0]
        connection.execute(f"LOAD '{Path(folder)}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
    return connection


def attached(served: Served) -> duckdb.DuckDBPyConnection:
    """A connection with the catalog attached as `c`. On S3 the user brings the keys, as a secret."""
    connection = connect()
    if served.place.endpoint:
        connection.execute(
            "CREATE SECRET (TYPE s3, KEY_ID $key, SECRET $secret, ENDPOINT $endpoint, URL_STYLE 'path', USE_SSL false)",
            {
                "key": served.place.keys["s3.access-key-id"],
                "secret": served.place.keys["s3.secret-access-key"],
                "endpoint": served.place.endpoint,
            },
        )
    connection.execute(f"ATTACH '' AS c (TYPE iceberg, ENDPOINT '{served.url}', AUTHORIZATION_TYPE 'none')")
    return connection
