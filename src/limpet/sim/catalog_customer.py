"""What a process wants of a catalog: it commits, reads, looks back, and now and then collects garbage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from limpet.catalog import View
from limpet.catalog.anti_entropy import judged
from limpet.catalog.chain import find, log, state_of, verify
from limpet.catalog.gc import collect_ledger, delete_below, raise_floor
from limpet.catalog.records import Head, SnapshotRef
from limpet.catalog.state import State
from limpet.catalog.storage import Storage
from limpet.errors import Missing, OutcomeUnknown, Unavailable
from limpet.sim.catalog_books import No, Request
from limpet.sim.catalog_checks import KEYS, CatalogBucket, Json
from limpet.sim.catalog_roles import Role, Scene
from limpet.sim.world import Process, Violation

__all__ = ["Customer"]


class _Slow(Storage):
    """Between a head and the snapshot that it names a reader is held up, often until GC has passed by."""

    bucket: CatalogBucket

    def snapshot(self, ref: SnapshotRef | None) -> State:
        """See `Storage.snapshot`."""
        for _ in range(20):
            self.runtime.sleep(self.runtime.rng.random() * 10)
            if ref is None or self.keys.snapshot(ref.id) not in self.bucket.objects:
                break
        return super().snapshot(ref)


class Customer(Role):
    """A client: commits, reads, walks the chain, and now and then collects garbage."""

    def __init__(self, scene: Scene, process: Process) -> None:
        super().__init__(scene, process)
        self.view = View(self.storage)
        self.api = 0
        self.actor = process.name if process.index % 2 else ""
        """What the service knows it by; some have no name."""
        self.seen: dict[str, str | None] = {}
        self.old: Head | None = None

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The things that clients do."""
        return [
            (self.habits.collects, self.collect),
            (0.04, self.walk),
            (0.04, self.look_back),
            (0.12, self.look),
            (0.25, self.commit_some),
            (1.0, self.commit_one),
        ]

    def turn(self) -> None:
        """One of them, and a rest."""
        super().turn()
        self.runtime.sleep(self.chance() * self.habits.rest_s)

    def commit_one(self) -> None:
        """A request."""
        self.commit(self.request())

    def commit_some(self) -> None:
        """Several at once."""
        requests = [self.request() for _ in range(2 + int(self.chance() * 3))]

        def one(request: Request) -> None:
            with suppress(Unavailable, OutcomeUnknown):
                self.commit(request)

        self.runtime.fan_out(one, requests)

    def request(self) -> Request:
        """Something that may well be refused."""
        name, kind = self.name(), self.chance()
        with_file = self.chance() < 0.25
        if kind < 0.3:
            return Request("create", {name: None}, {name: self.new_value()}, with_file)
        if kind < 0.5:
            return Request("drop", {name: self.seen.get(name)}, {name: None})
        if kind < 0.6:
            return Request("put", {}, {name: self.new_value()}, with_file)
        if kind < 0.8:
            return Request("swap", {name: self.seen.get(name)}, {name: self.new_value()}, with_file)
        names = sorted({name, self.name(), self.name()})
        wanted = {each: None if self.chance() < 0.3 else self.new_value() for each in names}
        return Request("transaction", {name: self.seen.get(name)}, wanted, with_file)

    def name(self) -> str:
        """Some key."""
        return self.habits.names[int(self.chance() * len(self.habits.names))]

    def commit(self, request: Request) -> None:
        """Send it until it is answered, or the client has enough of it: the same id to any API."""
        id_ = f"{self.process.name}-{self.new_value()}" if self.chance() < 0.85 else None
        for _ in range(8):
            slot = f"a{self.api}"
            try:
                self.send(slot, id_, request)
            except No:
                return
            except OutcomeUnknown:
                if id_ is None or self.chance() < 0.2:
                    return
                self.elsewhere()
            except Unavailable:
                self.elsewhere()
            else:
                self.seen.update(request.wanted)
                return
            self.runtime.sleep(self.chance() * self.habits.ttl_s / 2)

    def elsewhere(self) -> None:
        """Try another API next."""
        self.api = int(self.chance() * self.habits.apis)

    def send(self, slot: str, id_: str | None, request: Request) -> Any:
        """One request to an API."""
        return self.scene.wire.call(
            self.runtime,
            "commit.rpc",
            partial(self.scene.find, slot),
            lambda role: role.commit(id_, request, self.actor),
            patience_s=self.habits.patience_s * (0.5 + self.chance()),
        )

    def look(self) -> None:
        """Read, with a view that has been there for long or with a new one, alone or twice at a time."""
        if self.chance() < 0.3:
            self.runtime.fan_out(self.look_at, [self.view] * 2)
        elif self.chance() < 0.5:
            self.look_at(self.view)
        elif self.chance() < 0.5:
            self.look_at(View(self.storage))
        else:
            slow = _Slow(self.store, KEYS, self.runtime, Json())
            slow.bucket = self.bucket
            self.look_at(View(slow))

    def look_at(self, view: View) -> Head | None:
        """Read.   Raises: Violation unless it is what was published at some moment of the call."""
        self.books.operations += 1
        least = self.bucket.version
        try:
            loaded = view.now()
        except Unavailable:
            return None
        found = loaded.head.version if loaded else 0
        if not least <= found <= self.bucket.version:
            raise Violation(f"{self.process.name} read version {found} when {least} was published")
        if loaded is None:
            return None
        if loaded.head not in self.bucket.heads:
            raise Violation(f"{self.process.name} read a head that never was: {loaded.head}")
        self.same(loaded.state, found)
        self.seen = {key: value["v"] for key, value in loaded.state.entries().items()}
        return loaded.head

    def same(self, state: State, version: int) -> None:
        """Raises: Violation unless the state is that of the version."""
        if state.entries() != self.bucket.known[version].entries:
            raise Violation(
                f"{self.process.name} read {state.entries()} as version {version}, "
                f"which is {self.bucket.known[version].entries}"
            )

    def head(self) -> Head | None:
        """A head to walk from: the newest, or one that was read a while ago."""
        head = self.old if self.old and self.chance() < 0.4 else self.look_at(self.view)
        self.old = head
        return head

    def walk(self) -> None:
        """The whole chain."""
        head = self.head()
        if head is None:
            return
        if self.chance() < 0.5:
            self.bucket.walked([*log(self.storage, head)], head)
        elif (checked := verify(self.storage, head)).broken:
            raise Violation(f"the chain of version {head.version} is broken: {checked.broken}")

    def look_back(self, version: int | None = None) -> None:
        """The state as it once was."""
        head = self.head()
        if head is None:
            return
        wanted = version or 1 + int(self.chance() * head.version)
        try:
            commit = find(self.storage, head, lambda commit: commit.version <= wanted)
            if commit != self.bucket.known[wanted].commit:
                raise Violation(f"version {wanted} was found as {commit}")
            self.same(state_of(self.storage, head, commit), wanted)
        except Missing as error:
            if wanted >= self.bucket.kept_from:
                raise Violation(f"version {wanted} must be kept: {error}") from error

    def collect(self) -> None:
        """Collect garbage, all of it or some."""
        self.books.operations += 3
        grace_s = self.chance() * self.habits.ttl_s
        raise_floor(self.storage, keep=timedelta(0), keep_versions=self.habits.keeps)
        if self.chance() < 0.8:
            delete_below(self.storage, grace_s=grace_s)
        if self.chance() < 0.5:
            self.bucket.judged(judged(self.storage, grace_s=grace_s))
            collect_ledger(self.storage, grace_s=grace_s)
