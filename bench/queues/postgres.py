"""Postgres: one table, `FOR UPDATE SKIP LOCKED`, through psycopg 3 and a Unix socket.

Two ways that people use:

- `deleted`: a claim deletes its rows in a transaction that commits when their handlers have returned. The quickest;
  nothing to reap after a crash, nothing kept, and the transaction is open for as long as the tasks take.
- `leased`: a claim commits a lease, an acknowledgement commits `done`. Rows are kept, long tasks do no harm, and what a
  dead worker held comes back when the lease ends. This is what Limpet does.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["LEASE_S", "connect"]

LEASE_S = 5.0
PUSH = "INSERT INTO task (payload) SELECT unnest(%s::jsonb[])"
COPY = "COPY task (payload) FROM STDIN"


def connect(place: Place, options: Options) -> Queue:
    """`batch` rows a statement; `rows` is deleted or leased; `commit` is the session's synchronous_commit."""
    return {"deleted": _Deleted, "leased": _Leased}[options["rows"]](place, options)


class _Postgres(Queue):
    make: tuple[str, ...]
    count: str

    def __init__(self, place: Place, options: Options) -> None:
        package = needs("psycopg", "psycopg[binary]")
        self._batch = int(options["batch"])
        self._connection = package.connect(
            host=place.address,
            dbname="postgres",
            user="bench",
            options=f"-c synchronous_commit={options['commit']}",
            autocommit=True,
        )
        if place.fresh:
            # What earlier runs left behind is no load of this one.
            for statement in ("DROP TABLE IF EXISTS task", *self.make, "CHECKPOINT"):
                self._connection.execute(statement)

    def push(self, payloads: Sequence[Payload]) -> None:
        for first in range(0, len(payloads), self._batch):
            some = [json.dumps(payload) for payload in payloads[first : first + self._batch]]
            self._connection.execute(PUSH, (some,))

    def fill(self, payloads: Sequence[Payload]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for payload in payloads:
                copy.write_row((json.dumps(payload),))

    def settle(self) -> None:
        self._connection.execute("VACUUM ANALYZE task")

    def work(self, tally: Tally) -> None:
        while not tally.over():
            if not self.work_once(tally):
                tally.rest()

    @abstractmethod
    def work_once(self, tally: Tally) -> bool:
        """Claim, handle and acknowledge a batch; False if there was nothing."""

    def claim(self, statement: str, values: Sequence[Any], tally: Tally) -> list[Any]:
        """The rows that a claiming statement returns, timed."""
        begun_s = time.perf_counter()
        rows: list[Any] = self._connection.execute(statement, values).fetchall()
        if rows:
            tally.claims_us.append((time.perf_counter() - begun_s) * 1e6)
        return rows

    def left(self) -> int:
        return int(self._connection.execute(self.count).fetchone()[0])

    def close(self) -> None:
        self._connection.close()


class _Deleted(_Postgres):
    make = ("CREATE TABLE task (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL)",)
    count = "SELECT count(*) FROM task"
    take = (
        "DELETE FROM task WHERE id = ANY (ARRAY(SELECT id FROM task ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED))"
        " RETURNING payload"
    )

    def work_once(self, tally: Tally) -> bool:
        with self._connection.transaction():
            rows = self.claim(self.take, (self._batch,), tally)
            for (payload,) in rows:
                tally.handle(payload)
        return bool(rows)


class _Leased(_Postgres):
    make = (
        "CREATE TABLE task (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL,"
        " done boolean NOT NULL DEFAULT false, leased_until timestamptz NOT NULL DEFAULT '-infinity')",
        "CREATE INDEX waiting ON task (id) WHERE NOT done",
    )
    count = "SELECT count(*) FROM task WHERE NOT done"
    take = (
        "UPDATE task SET leased_until = now() + %s * interval '1 second' WHERE id = ANY (ARRAY(SELECT id FROM task"
        " WHERE NOT done AND leased_until < now() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id, payload"
    )
    end = "UPDATE task SET done = true WHERE id = ANY (%s)"

    def work_once(self, tally: Tally) -> bool:
        rows = self.claim(self.take, (LEASE_S, self._batch), tally)
        for _, payload in rows:
            tally.handle(payload)
        if rows:
            self._connection.execute(self.end, ([number for number, _ in rows],))
        return bool(rows)
