"""The first use of a record type by many threads at once, as after the start of a service that clients wait for.

msgspec lets a second thread see the type before the first one has finished it, and then reads what is not there: the
process dies of a segmentation fault.
"""

from __future__ import annotations

import os
import subprocess
import sys

from crash.conftest import TESTS


def test_many_threads_decode_a_type_that_is_new() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "crash.first_use"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONFAULTHANDLER": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[:2000]
