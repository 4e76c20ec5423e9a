"""Whether and where a fleet notes what its workers and compilers did."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from limpet.app.urls import absolute
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.events import EXECUTIONS, Event, EventSink
from limpet.keys import CatalogKeys
from limpet.runtime import Runtime
from limpet.store import MeteredStore, Store

SWITCH = "LIMPET_EVENTS"


def is_wanted(asked: bool | None) -> bool:
    """Whether events are switched on: as asked, else by LIMPET_EVENTS (1 or 0).   Raises: Invalid for another value."""
    if asked is not None:
        return asked
    text = os.environ.get(SWITCH, "")
    if text not in ("", "0", "1"):
        raise Invalid(f"{SWITCH} is {text!r}", hint="set it to 1 or 0")
    return text == "1"


def events_of(store: MeteredStore, url: str, runtime: Runtime) -> EventSink:
    """The sink of a fleet: one for all its handles in this process. What it still holds is written at exit."""
    place: Hashable = (EventSink, id(store) if url.startswith("memory:") else absolute(url))
    if place not in runtime.shared:
        from limpet.events.sink import LedgerSink  # only a fleet that keeps events pays for it

        sink = LedgerSink(store, CatalogKeys.of(EXECUTIONS), runtime, lambda: store.snapshot().total())
        runtime.shared[place] = sink
        atexit.register(sink.close)
    found: EventSink = runtime.shared[place]
    return found


@dataclass(frozen=True, slots=True)
class Recent:
    """Some events, the newest first; and why others could not be read."""

    events: list[Event]
    unreadable: list[str]


def recent(store: Store, runtime: Runtime, n: int, wanted: Callable[[Event], bool] = lambda event: True) -> Recent:
    """The newest `n` events that are wanted, of those that were written down: in the ledger, or folded into files.

    Raises: Unsupported if events were folded, and pyarrow is not installed to read them.
    Cost: 1 LIST + 1 GET for each object of the ledger; 1 GET + 1 for each file that may hold one of the newest.
    """
    from limpet.events.fold import Executions, read_batch
    from limpet.ledger import OBJECT_BYTES_MAX

    keys = CatalogKeys.of(EXECUTIONS)
    found: dict[str, Event] = {}
    bad: list[str] = []
    listed = [stat.key for stat in store.list(keys.ledger) if keys.batch_id(stat.key) is not None]
    for key, blob in store.get_many(listed, size_max=OBJECT_BYTES_MAX).items():
        try:
            if isinstance(blob, LimpetError):
                raise blob
            found |= {event.id: event for event in read_batch(blob.data, EXECUTIONS).events if wanted(event)}
        except Missing:  # it was folded since
            continue
        except (Corrupt, Invalid, Unsupported) as error:
            bad.append(f"{key}: {error}")
    for last, events in Executions(store, keys, runtime).newest_first():
        newest = sorted(found, reverse=True)[:n]
        if len(newest) == n and last < newest[-1]:
            break
        found |= {event.id: event for event in events if wanted(event)}
    return Recent([found[id_] for id_ in sorted(found, reverse=True)[:n]], bad)
