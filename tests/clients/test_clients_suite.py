"""PyIceberg's own integration tests, against Limpet on SeaweedFS, with a real Spark beside them.

They come from the source package of the installed version. Addresses and keys in them are replaced; else they run as
they are. `DESELECTED` names each test that is left out, and why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import pytest

from clients.conftest import serving
from clients.serving import Place, place_in
from clients.test_clients_spark import SHADED, completed, jar
from support.servers.process import Bucket
from support.servers.s3 import create_bucket

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "pyiceberg"
REMOTE_SPARK = 'SparkSession.builder.remote("sc://localhost:15002").getOrCreate()'
OTHERS = " and ".join(
    f"not {name}" for name in ("hive", "sqlite", "memory_catalog", "rest_test_catalog", "test_ray", "daft", "bodo")
)
"""Other catalogs, and engines that are not installed here."""

_LAYOUT = "asserts the folders of its own server; a table of Limpet has a folder with a unique name"
_HEX = "calls `.hex()` of a UUID: with this pyarrow it is a property"
_DOWNLOAD = "DuckDB installs its extension from the network"
DESELECTED = {
    "test_catalog.py::test_create_table_with_default_location": "wants a UUID in the name of a metadata file; Limpet's "
    "have the digest of their content",
    "test_catalog.py::test_rest_custom_namespace_separator": "its own server is set up with another separator",
    "test_inspect_table.py::test_inspect_refs": "wants the order of a Java hash map",
    "test_inspect_table.py::test_inspect_all_manifests": "Iceberg 1.9 has one column fewer than PyIceberg 0.12",
    "test_statistics_operations.py::test_manage_statistics": "names a file outside the warehouse, which is refused",
    "test_writes/test_writes.py::test_object_storage_data_files": _LAYOUT,
    "test_writes/test_writes.py::test_merge_manifests_file_content": _LAYOUT,
    "test_add_files.py::test_add_files_with_valid_upcast": _HEX,
    "test_writes/test_writes.py::test_table_write_schema_with_valid_upcast": _HEX,
    "test_writes/test_writes.py::test_duckdb_url_import": _DOWNLOAD,
    "test_writes/test_writes.py::test_sanitize_character_partitioned_avro_bug": _DOWNLOAD,
    "test_reads.py::test_iceberg_property_deletion_not_restored_from_old_hms_state": "uses Hive",
}
SKIPPED = {
    "test_v3_write_and_read_row_lineage",  # "V3 writer support is not enabled": PyIceberg cannot write version 3
    "test_pyarrow_not_nan_count",
    "test_pyarrow_batches_not_nan_count",
    "test_namespace_with_slash",
    "test_table_name_with_slash",
}
"""What PyIceberg itself skips."""
VERSION_3 = {
    *(f"test_pyarrow_{how}deletes{more}[3-session_catalog]" for how in ("", "batches_") for more in ("", "_double")),
    "test_scan_tag[3-session_catalog]",
    "test_scan_branch[3-session_catalog]",
    "test_inspect_files_format_version_3",
    "test_inspect_files_partitioned[3]",
    "test_read_spark_written_puffin_dv",
    "test_initial_default[session_catalog]",
    "test_nanosecond_support_on_catalog",
    "test_upgrade_table_version[session_catalog]",
    "test_initial_default_all_columns[iceberg_type0-True-False]",
    "test_add_required_column_initial_default",
}
"""Tests with tables of format version 3 (or, the last ones, with its default values) that must have passed."""


def source() -> Path:
    """The source package of PyIceberg, from the package registry."""
    name = f"pyiceberg-{version('pyiceberg')}"
    found = CACHE / f"{name}.tar.gz"
    if not found.exists():
        only = ["--no-deps", "--no-build-isolation", "--no-binary", "pyiceberg", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", "-q", *only, "-d", str(CACHE), name.replace("-", "==")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    return found


def prepared(folder: Path, url: str, place: Place) -> Path:
    """PyIceberg's tests in `folder`, with our addresses in them."""
    with tarfile.open(source()) as packed:
        packed.extractall(folder, filter="data")
    [root] = folder.glob("pyiceberg-*")
    shutil.rmtree(root / "pyiceberg")  # the installed one is tested
    new = {
        "http://localhost:8181": url,
        "http://localhost:9000": f"http://{place.endpoint}",
        '"s3.access-key-id": "admin"': f'"s3.access-key-id": "{place.keys["s3.access-key-id"]}"',
        '"s3.secret-access-key": "password"': f'"s3.secret-access-key": "{place.keys["s3.secret-access-key"]}"',
        REMOTE_SPARK: '__import__("spark_driver").beside_pyiceberg()',
        "in catalogs.items():": 'in [("rest", catalogs["rest"])]:',
    }
    assert REMOTE_SPARK in (root / "tests" / "conftest.py").read_text()
    for path in (*(root / "tests").rglob("*.py"), root / "dev" / "provision.py"):
        text = path.read_text()
        for old, ours in new.items():
            text = text.replace(old, ours)
        path.write_text(text)
    return root


def environment(folder: Path, url: str, place: Place) -> dict[str, str]:
    """What `spark_driver.beside_pyiceberg` needs."""
    found = jar()
    assert found is not None, "pyspark and its jar are not installed: `python3 tools/install.py test-full`"
    options = {"uri": url, "io-impl": f"{SHADED}.aws.s3.S3FileIO", **place.keys}
    return {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "SPARK_JARS": completed(found, folder),
        "SPARK_CATALOGS": json.dumps({"rest": options}),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AWS_REGION": "us-east-1",
    }


def test_pyiceberg_s_integration_tests_pass(seaweedfs: Bucket, tmp_path: Path) -> None:
    place = place_in(seaweedfs, f"suite-{uuid4().hex}")
    keys = {name.removeprefix("s3.").replace("-", "_"): value for name, value in place.keys.items()}
    assert create_bucket(f"http://{place.endpoint}", "warehouse", keys), "for files that the tests add"
    with serving(place, tmp_path) as served:
        root, env = prepared(tmp_path, served.url, place), environment(tmp_path, served.url, place)
        fill = [sys.executable, "dev/provision.py"]
        filled = subprocess.run(fill, cwd=root, env=env, capture_output=True, check=False)
        assert filled.returncode == 0, filled.stderr[-3000:].decode()
        report = tmp_path / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short"]
        command += ["-m", "integration", "-k", OTHERS, f"--junitxml={report}", "tests/integration"]
        command += [part for name in DESELECTED for part in ("--deselect", f"tests/integration/{name}")]
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:].decode(errors="replace")
    cases = [*ET.parse(report).getroot().iter("testcase")]
    skipped = {str(case.get("name")).partition("[")[0] for case in cases if case.find("skipped") is not None}
    passed = {str(case.get("name")) for case in cases if not len(case)}
    assert skipped <= SKIPPED
    assert passed >= VERSION_3, VERSION_3 - passed
    assert len(cases) > 900
