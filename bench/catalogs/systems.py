"""Which catalogs are measured, where, and with how many clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CLIENTS", "PLACES", "SYSTEMS", "Kind", "PlaceKind", "System"]

Kind = Literal["ours", "peer"]
PlaceKind = Literal["directory", "SeaweedFS", "30 ms"]

PLACES: tuple[PlaceKind, ...] = ("directory", "SeaweedFS", "30 ms")
CLIENTS = (1, 8, 64)


@dataclass(frozen=True, slots=True)
class System:
    """One catalog, or one way to reach it. `module` is its adapter."""

    name: str
    kind: Kind
    module: str
    served: bool = False
    """Whether its clients talk to a server, a process of its own."""
    processes: int = 1
    """Over how many processes its clients are spread."""
    places: tuple[PlaceKind, ...] = PLACES
    clients: tuple[int, ...] = CLIENTS
    large: bool = True
    """Whether it is measured with many tables too."""


SYSTEMS = (
    System("limpet in process", "ours", "ours"),
    System("limpet over HTTP", "ours", "wire", served=True),
    System("limpet, PyIceberg client", "ours", "rest", served=True, processes=2, clients=(1, 8), large=False),
    System("SqlCatalog, SQLite", "peer", "sql", processes=2),
    System("boringcatalog", "peer", "boring", processes=2),
)
