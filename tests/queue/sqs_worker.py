"""A consumer that is killed, or kills itself: `python sqs_worker.py hang|die ENDPOINT PREFIX QUEUE TTL_S`."""

from __future__ import annotations

import os
import signal
import sys
import threading

from limpet.queue.api import Policy
from limpet.queue.sqs import connect

__all__ = ["main"]


def main(how: str, endpoint: str, prefix: str, name: str, ttl_s: str) -> None:
    """Claim one task, say which, and never give a verdict."""
    queue = connect(
        name,
        region="us-east-1",
        prefix=prefix,
        endpoint_url=endpoint,
        policy=Policy(max_attempts=2, ttl_s=float(ttl_s)),
    )
    with queue.claim(wait_s=30) as claim:
        for task in claim:
            print(task.id, task.attempt, flush=True)
            if how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
