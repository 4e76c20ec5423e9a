"""Which provider a queue lives in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet.app.place import provider_of
from limpet.kernel.errors import Invalid, Unsupported
from support.servers.process import Bucket


@pytest.fixture
def sqs(server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = server("moto")
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    return bucket


@pytest.mark.parametrize(
    ("url", "asked", "provider"),
    [
        ("./fleet", "", "filesystem"),
        ("file:///srv/fleet", "", "filesystem"),
        ("memory://", "", "memory"),
        ("s3://bucket/prefix", "", "bucket"),
        ("az://bucket", "bucket", "bucket"),
        ("sqs://eu-west-1/acme", "", "sqs"),
        ("./fleet", "sqs", "sqs"),
        ("s3://bucket", "sqs", "sqs"),
        ("./fleet", "filesystem", "filesystem"),
    ],
)
def test_provider(monkeypatch: pytest.MonkeyPatch, url: str, asked: str, provider: str) -> None:
    monkeypatch.setenv("LIMPET_QUEUE_TYPE", asked)
    assert provider_of(url) == provider


@pytest.mark.parametrize(("url", "asked"), [("./fleet", "bucket"), ("s3://b", "filesystem"), ("./fleet", "redis")])
def test_a_type_that_does_not_fit_the_url(monkeypatch: pytest.MonkeyPatch, url: str, asked: str) -> None:
    monkeypatch.setenv("LIMPET_QUEUE_TYPE", asked)
    with pytest.raises(Invalid, match="LIMPET_QUEUE_TYPE"):
        provider_of(url)


def test_the_queues_of_a_directory_on_sqs(sqs: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_QUEUE_TYPE", "sqs")
    monkeypatch.setenv("LIMPET_SQS_REGION", "us-east-1")
    monkeypatch.setenv("LIMPET_SQS_PREFIX", "dir")
    fleet = limpet.open(tmp_path / "fleet")
    queue = fleet.queue("enrich")
    assert queue.provider == "sqs"
    queue.push({"domain": "a.com"})
    with queue.claim(wait_s=5) as claim:
        assert [task.payload for task in claim] == [{"domain": "a.com"}]
    assert fleet.lock("works").try_acquire() is not None
    with pytest.raises(Unsupported, match="no results"):
        queue.result("x")
    assert not [*(tmp_path / "fleet").glob("queues")]


def test_a_fleet_on_sqs_has_queues_only(sqs: Bucket) -> None:
    fleet = limpet.open("sqs://us-east-1/only")

    @fleet.task("enrich")
    def enrich(domain: str) -> None:
        """A task."""

    enrich.push("b.com")
    with enrich.queue.claim(wait_s=5) as claim:
        for task in claim:
            assert task.payload == {"domain": "b.com"}
            task.done()
    with pytest.raises(Unsupported, match="SQS has queues"):
        fleet.cell("x").read()
    with pytest.raises(Unsupported, match="no ids"):
        fleet.task("nightly", cron="0 3 * * *")(lambda_free)


def lambda_free() -> None:
    """A function without arguments."""
