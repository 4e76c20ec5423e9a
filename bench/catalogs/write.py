"""Many small files at once, for a catalog that is filled before the clock starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.store import S3Store

from bench.catalogs.api import Place

__all__ = ["writer"]

AT_ONCE = 16


@contextmanager
def writer(place: Place) -> Iterator[Callable[[str, bytes], object]]:
    """`write(url, data)`: all is written when the block ends."""
    if place.url.startswith("file://"):
        yield _to_file
        return
    bucket = place.url.removeprefix("s3://").partition("/")[0]
    store = S3Store(
        bucket,
        endpoint=place.properties["s3.endpoint"],
        access_key_id=place.properties["s3.access-key-id"],
        secret_access_key=place.properties["s3.secret-access-key"],
        region=place.properties["s3.region"],
        client_options={"allow_http": True},
    )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sent = []

        def write(url: str, data: bytes) -> None:
            sent.append(pool.submit(obstore.put, store, url.removeprefix(f"s3://{bucket}/"), data))

        yield write
        for each in sent:
            each.result()


def _to_file(url: str, data: bytes) -> None:
    path = Path(url.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
