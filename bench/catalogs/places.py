"""Where catalogs live: a folder on tmpfs, a bucket of SeaweedFS, and a folder that is 30 ms away."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Self

from bench.catalogs.api import NotHere, Place
from bench.catalogs.systems import PlaceKind
from bench.slow import DELAY_S
from support.servers.process import Bucket, NotInstalled
from support.servers.seaweedfs import SeaweedFS

__all__ = ["TMPFS", "Places"]

TMPFS = Path("/dev/shm")


class Places:
    """A context manager; SeaweedFS is started when it is first needed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bucket: Bucket | None = None
        self._numbers = count()

    def __enter__(self) -> Self:
        made = tempfile.TemporaryDirectory(dir=TMPFS, prefix="limpet-bench-", ignore_cleanup_errors=True)
        self._folder = Path(self._stack.enter_context(made))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def fresh(self, kind: PlaceKind) -> Iterator[Place]:
        """An empty place of its own, gone afterwards.   Raises: NotHere."""
        name = f"place{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir()
        try:
            if kind == "SeaweedFS":
                yield _in_bucket(folder, name, self._server())
            else:
                yield Place(folder, f"file://{folder}/fleet", DELAY_S if kind == "30 ms" else 0.0)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _server(self) -> Bucket:
        if self._bucket is None:
            try:
                self._bucket = self._stack.enter_context(SeaweedFS()).bucket
            except NotInstalled as error:
                raise NotHere(str(error)) from None
        return self._bucket


def _in_bucket(folder: Path, prefix: str, bucket: Bucket) -> Place:
    env = bucket.env
    properties = {
        "s3.endpoint": env["AWS_ENDPOINT_URL"],
        "s3.access-key-id": env["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": env["AWS_SECRET_ACCESS_KEY"],
        "s3.region": env["AWS_REGION"],
    }
    url = bucket.at(prefix).partition("?")[0]
    return Place(folder, url, 0.0, properties, env)
