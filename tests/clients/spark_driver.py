"""Spark in a process of its own: SQL statements come in as JSON lines, answers go out as JSON lines.

    python spark_driver.py JARS CATALOGS

JARS are joined by commas. CATALOGS is a JSON object: for each catalog its options. Each line is a list of statements,
which run at once. The answer is, for each of them, `{"rows": [...]}` or `{"error": "..."}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["main"]

SHADED = "smfs.shaded.org.apache.iceberg"


def session(jars: str, catalogs: Mapping[str, Mapping[str, str]]) -> Any:
    """A Spark with those catalogs, alone on this machine."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("limpet")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.extensions", f"{SHADED}.spark.extensions.IcebergSparkSessionExtensions")
    )
    for name, options in catalogs.items():
        at = f"spark.sql.catalog.{name}"
        builder = builder.config(at, f"{SHADED}.spark.SparkCatalog")
        builder = builder.config(f"{at}.catalog-impl", f"{SHADED}.rest.RESTCatalog")
        builder = builder.config(f"{at}.cache-enabled", "false")
        for option, value in options.items():
            builder = builder.config(f"{at}.{option}", value)
    return builder.getOrCreate()


def answer(spark: Any, statement: str) -> dict[str, Any]:
    """The rows of a statement, or the error that it met."""
    try:
        return {"rows": [list(row) for row in spark.sql(statement).collect()]}
    except (PySparkException, Py4JError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def beside_pyiceberg() -> Any:
    """A Spark for PyIceberg's own tests: JARS and CATALOGS are in the environment, the first catalog is the default."""
    catalogs = json.loads(os.environ["SPARK_CATALOGS"])
    spark = session(os.environ["SPARK_JARS"], catalogs)
    spark.conf.set("spark.sql.defaultCatalog", next(iter(catalogs)))
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    spark.conf.set("spark.sql.execution.pandas.structHandlingMode", "dict")
    return spark


def main() -> None:
    """Answer until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    spark = session(sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps("ready"), file=out, flush=True)
    with ThreadPoolExecutor(16) as threads:
        for line in sys.stdin:
            answers = [*threads.map(lambda statement: answer(spark, statement), json.loads(line))]
            print(json.dumps(answers, default=str), file=out, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
