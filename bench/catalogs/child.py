"""One process of a measurement: some clients of one catalog.

`python -m bench.catalogs.child MODULE PLACE` (JSON) opens the catalog, says `{"ready": true}` and then does
what each line of its standard input says, answering each with a line. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.catalogs.api import NotHere, Place, needs
from bench.catalogs.work import Share

__all__ = ["main"]


def main(module: str, place: Mapping[str, Any]) -> int:
    """Serve the parent; the exit code."""
    adapter = importlib.import_module(f"bench.catalogs.{module}")
    try:
        for name, package in adapter.NEEDS.items():
            needs(name, package)
        catalog = adapter.connect(Place(**{**place, "folder": Path(place["folder"])}))
    except NotHere as error:
        _say({"not_here": str(error)})
        return 0
    _say({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        try:
            _say(_ACTS[job.pop("act")](catalog, **job))
        except Exception as error:  # noqa: BLE001 - a peer raises whatever it likes; the parent is told
            traceback.print_exc()
            _say({"failed": f"{type(error).__name__}: {error}"[:300]})
    catalog.close()
    return 0


def _fill(catalog: Any, tables: int) -> dict[str, Any]:
    catalog.fill(tables)
    return {}


def _drive(catalog: Any, verb: str, first: int, last: int, clients: int, seconds: float) -> dict[str, Any]:
    before, cpu_s = catalog.spent(), time.process_time()
    done = catalog.drive(verb, [Share(number, clients) for number in range(first, last)], seconds)
    cpu_s = time.process_time() - cpu_s
    return {**done.plain(), "cpu_s": cpu_s, "spent": _difference(done.before or before, catalog.spent())}


def _check(catalog: Any, verb: str, clients: int) -> dict[str, Any]:
    if verb == "create":
        return {"there": catalog.count()}
    return {"there": catalog.snapshots([name for number in range(clients) for name in Share(number, clients).own()])}


_ACTS: Mapping[str, Callable[..., dict[str, Any]]] = {"fill": _fill, "drive": _drive, "check": _check}


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
