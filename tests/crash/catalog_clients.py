"""PyIceberg clients that create and append without end and note what they were told, whoever is killed meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from requests.exceptions import RequestException

__all__ = ["NAMESPACE", "SCHEMA", "SHARED", "Books", "Client"]

NAMESPACE, SHARED = "crash", "shared"
SCHEMA = pa.schema([("id", pa.string())])
PATIENT = {"commit.retry.num-retries": "50", "commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "100"}
APPENDS_EACH = 4
PAUSE_S = 0.3
UNKNOWN = (CommitStateUnknownException, ServerError, RequestException)


@dataclass
class Books:
    """What all clients were told. A row or a table is in exactly one of the three."""

    acked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    created: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Client:
    """One client. It knows every API's address, and goes to the next one when the one it asked cannot serve it."""

    def __init__(
        self, number: int, urls: Sequence[str], keys: Mapping[str, str], books: Books, stop: threading.Event
    ) -> None:
        self._number = number
        self._urls = [*urls]
        self._keys = keys
        self._books = books
        self._stop = stop
        self._catalog: RestCatalog | None = None

    def run(self) -> None:
        """Until told to stop: create a table, append to it a few times, and to the one that all share."""
        number = 0
        while not self._stop.is_set():
            name = f"t{self._number}_{number}"
            number += 1
            if not self._create(name):
                return
            for n in range(APPENDS_EACH):
                self._append(name, f"{name}.{n}")
            self._append(SHARED, f"{SHARED}.{name}")

    def _create(self, name: str) -> bool:
        """Create it by one request that is sent again, under one key, until the answer is definite."""
        headers = {"header.Idempotency-Key": str(_uuid7())}
        self._books.unknown.add(name)

        def create() -> Table:
            with self._open(headers) as catalog:
                return catalog.create_table((NAMESPACE, name), SCHEMA, properties=PATIENT)

        while not self._stop.is_set():
            try:
                made = self._ask("create", create)
            except TableAlreadyExistsError as error:
                self._books.wrong.append(f"{name} was refused by its own earlier request: {error}")
                return False
            if made is not None:
                self._books.unknown.discard(name)
                self._books.acked.add(name)
                self._books.created[name] = str(made.metadata.table_uuid)
                return True
        return False

    def _append(self, table_name: str, row: str) -> None:
        """One append; its row's name says all. What is not acknowledged is not sent again: it would be another row."""
        table = None
        while table is None:
            if self._stop.is_set():
                return
            table = self._ask("load", lambda: self._client().load_table((NAMESPACE, table_name)))
        self._books.unknown.add(row)
        try:
            table.append(pa.table({"id": [row]}, schema=SCHEMA))
        except (CommitFailedException, ServiceUnavailableError) as error:
            self._note("append", error)
            self._books.unknown.discard(row)
            self._books.refused.add(row)
        except UNKNOWN as error:
            self._note("append", error)
        else:
            self._books.unknown.discard(row)
            self._books.acked.add(row)

    def _ask(self, what: str, act: Callable[[], Table]) -> Table | None:
        """None: no answer, or none that is definite."""
        try:
            return act()
        except (ServiceUnavailableError, *UNKNOWN) as error:
            self._note(what, error)
            return None

    def _note(self, what: str, error: Exception) -> None:
        self._books.answers[f"{what}: {type(error).__name__}"] += 1
        self._catalog = None
        self._urls.append(self._urls.pop(0))
        self._stop.wait(PAUSE_S)

    def _client(self) -> RestCatalog:
        self._catalog = self._catalog or self._open({})
        return self._catalog

    def _open(self, properties: Mapping[str, Any]) -> RestCatalog:
        return RestCatalog("limpet", uri=self._urls[0], **self._keys, **properties)


def _uuid7() -> UUID:
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
