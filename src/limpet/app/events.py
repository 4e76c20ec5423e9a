"""Whether and where a fleet notes what its workers and compilers did."""

from __future__ import annotations

import atexit
import os
from collections.abc import Hashable

from limpet.app.urls import absolute
from limpet.errors import Invalid
from limpet.events import EXECUTIONS, EventSink
from limpet.keys import CatalogKeys
from limpet.runtime import Runtime
from limpet.store import MeteredStore

__all__ = ["SWITCH", "events_of", "is_wanted"]

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
        from limpet.catalog.sink import LedgerSink  # only a fleet that keeps events pays for it

        sink = LedgerSink(store, CatalogKeys.of(EXECUTIONS), runtime, lambda: store.snapshot().total())
        runtime.shared[place] = sink
        atexit.register(sink.close)
    found: EventSink = runtime.shared[place]
    return found
