"""`NodeQueue`: a queue whose names travel between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from limpet.errors import LimpetError, Missing
from limpet.queue.claim import EntryClaim
from limpet.queue.pages import Candidate, Pages
from limpet.queue.queue import BucketQueue
from limpet.queue.storage import Content, Storage
from limpet.queue.sync.journal import ClientLog, Outbox
from limpet.runtime import Runtime
from limpet.store.api import Stat, Store

__all__ = ["NodeQueue"]


class _Storage(Storage):
    """A minted name may come back from elsewhere after it ended, so every claim looks for a receipt."""

    def content(self, entry: str, *, batch: bool) -> Content:
        if self.ended(entry):
            self.close(entry, batch=batch)
            raise Missing(f"{entry} has ended")
        return super().content(entry, batch=batch)

    def close(self, entry: str, *, batch: bool) -> None:
        super().close(entry, batch=batch)
        with suppress(LimpetError):
            self.store.delete(self.keys.remote(entry))


class _Pages(Pages):
    def _candidates(self, found: Sequence[Stat]) -> list[Candidate]:
        journal = self._storage.journal
        assert isinstance(journal, Outbox | ClientLog)
        foreign = journal.foreign(found)
        return [each for each in super()._candidates(found) if each.entry not in foreign]


class NodeQueue(BucketQueue):
    """A queue of a supervised node (with an `Outbox`), or of a bucket beside such nodes (with a `ClientLog`)."""

    def __init__(
        self, store: Store, name: str, runtime: Runtime, *, journal: Outbox | ClientLog, **options: Any
    ) -> None:
        super().__init__(store, name, runtime, journal=journal, **options)
        self._journal = journal
        self.storage.__class__ = _Storage
        self._pages.__class__ = _Pages

    def _open(self, *what: Any) -> EntryClaim | None:
        claim = super()._open(*what)
        if claim is not None:
            claim.beat = partial(self._beat, claim, claim.beat, [])  # type: ignore[method-assign]
        return claim

    def _beat(self, claim: EntryClaim, beat: Any, noted: list[bool]) -> None:
        """A claim that lasts is told to the others, once."""
        beat()
        if not noted:
            noted.append(True)
            self._journal.held(self.storage.keys, claim.entry, claim.batch)
