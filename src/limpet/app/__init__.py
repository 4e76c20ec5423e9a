"""`open()` and `Fleet`: the rooms wired together under one URL."""

from limpet.app.fleet import Fleet, open

__all__ = ["Fleet", "open"]
