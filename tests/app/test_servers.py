"""A whole fleet on each real server: opened, locked, fenced, opened again."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

import limpet
from limpet.kernel.doctor import examine
from support.servers.process import Bucket

FULL = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("seaweedfs", "quoted"),
        pytest.param("rgw", "unquoted", marks=FULL),
        pytest.param("azurite", "quoted", marks=FULL),
    ],
)
def test_a_fleet_lives_there(
    name: str, style: str, server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server(name)
    for variable, value in bucket.env.items():
        monkeypatch.setenv(variable, value)
    url = bucket.at(f"fleet-{uuid4().hex}")
    first = limpet.open(url)
    assert first.record.probe.etag_style == style
    with first.lock("report", ttl_s=30).hold(wait_s=0) as lease:
        first.cell("report").write({"rows": 1}, lease=lease)
    again = limpet.open(url)
    assert again.record == first.record
    with again.lock("report", ttl_s=30).hold(wait_s=0) as newer:
        assert newer.token == lease.token + 1
        again.cell("report").write({"rows": 2}, lease=newer)
        with pytest.raises(limpet.LeaseLost):
            first.cell("report").write({"rows": "late"}, lease=lease)
    seen = limpet.open(url, read_only=True).cell("report").read()
    assert seen is not None
    assert seen.value == {"rows": 2}


@pytest.mark.parametrize("name", [pytest.param("rgw", marks=FULL), pytest.param("azurite", marks=FULL)])
def test_doctor_finds_them_fit(name: str, server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch) -> None:
    from limpet.kernel.store.cloud import CloudStore

    bucket = server(name)
    report = examine(CloudStore(bucket.at(f"doctor-{uuid4().hex}"), options=bucket.options), rounds=1)
    assert report.ok, [check for check in report.checks if not check.ok]
