"""`limpet serve` as a process of a measurement: the same parts, over a store that may be far away.

`python -m bench.catalogs.serve PLACE` (JSON) says `{"ready": true, "server": "host:port"}`, then answers each line of
its standard input, which says how far away the store is from now on, with what was spent so far. It ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.catalogs.api import Place
from bench.catalogs.ours import NOBODY, opened, parts_of, set_delay, spent
from limpet.app import Fleet
from limpet.service.serve import listen, run

__all__ = ["main"]


def main(place: Place) -> None:
    """Serve until standard input ends."""
    fleet = opened(place)
    shared, compactor, api = parts_of(fleet)
    listener = listen("127.0.0.1", 0)
    address = "{}:{}".format(*listener.getsockname()[:2])

    def started() -> None:
        while not api.leader.leads:
            time.sleep(0.01)
        _say({"ready": True, "server": address})

    threading.Thread(target=_obey, args=(fleet,), daemon=True).start()
    run([compactor, api], shared, listener, NOBODY, started)


def _obey(fleet: Fleet) -> None:
    for line in sys.stdin:
        set_delay(fleet.meter, json.loads(line)["delay_s"])
        _say({"spent": spent(fleet.meter), "cpu_s": time.process_time()})
    os.kill(os.getpid(), signal.SIGTERM)


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(Place(**{**given, "folder": Path(given["folder"])}))
