"""`--engine`: where an import or a compile does its work: here, in threads, in processes, or on a Dask cluster."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import connection, get_context, parent_process
from typing import Any

from limpet.errors import Invalid, Unavailable, Unsupported

WORKERS_MAX = 256
CONNECT_S = 10
_HINT = "write processes=4, threads=4, or dask=tcp://HOST:PORT"


@dataclass(frozen=True, slots=True)
class Engine:
    """Where work is done: by an executor, or without one in this process; `workers` is how many jobs run at once."""

    executor: Executor | None
    workers: int = 1


@contextmanager
def engine(text: str | None, url: str) -> Iterator[Engine]:
    """What `--engine` names, for a fleet at `url`, while the block lasts.

    Raises: Invalid; Unsupported without the package; Unavailable for a cluster, or a worker of it, that is not there.
    """
    if text is None:
        yield Engine(None)
        return
    kind, _, value = text.partition("=")
    if kind == "dask" and value:
        _demand_shared(text, url)
        with _dask(value) as found:
            yield found
        return
    if kind not in ("processes", "threads") or not re.fullmatch("[0-9]{1,3}", value):
        raise Invalid(f"{text!r} is not an engine", hint=_HINT)
    workers = int(value)
    if not 1 <= workers <= WORKERS_MAX:
        raise Invalid(f"{text!r}: an engine has 1 to {WORKERS_MAX} workers", hint=_HINT)
    if kind == "processes":
        _demand_shared(text, url)
    with _pool(kind, workers) as pool, _explained(text):
        yield Engine(pool, workers)


def _demand_shared(text: str, url: str) -> None:
    if url.startswith("memory:"):
        raise Invalid(f"{text}: no other process sees {url}", hint="use a directory or a bucket, or threads=N")


@contextmanager
def _pool(kind: str, workers: int) -> Iterator[Executor]:
    pool = (
        ThreadPoolExecutor(workers, thread_name_prefix="limpet-engine")
        if kind == "threads"
        else ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_child)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_child() -> None:
    """In a worker process: leave Ctrl-C to the parent, and exit at once when the parent is gone."""
    from limpet.runtime import system

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    system().spawn(leave_with_parent, name="limpet-parent")


@contextmanager
def _dask(address: str) -> Iterator[Engine]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise Unsupported("--engine dask needs Dask", hint="pip install 'limpet[dask]'") from None
    try:
        client = distributed.Client(address, timeout=f"{CONNECT_S}s", set_as_default=False)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:120]
        hint = "check the address; `dask scheduler` prints it when it starts"
        raise Unavailable(f"no Dask scheduler answers at {address}: {why}", hint=hint) from None
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise Unavailable(f"the Dask cluster at {address} has no worker", hint=f"dask worker {address}")
        killed: type[Exception] = import_module("distributed.scheduler").KilledWorker
        with warnings.catch_warnings(), _explained(f"dask={address}", killed):
            warnings.filterwarnings("ignore", message="Sending large graph")
            # pure: Dask would answer a job from the result of an earlier one that looks the same
            yield Engine(client.get_executor(pure=False), workers)


@contextmanager
def _explained(text: str, died: type[Exception] = BrokenExecutor) -> Iterator[None]:
    """Failures of the workers themselves as errors of one line."""
    try:
        yield
    except (BrokenExecutor, CancelledError, died):
        raise Unavailable(
            f"a worker of --engine {text} died",
            hint="nothing is lost: run the command again, with fewer workers if the memory ran out",
        ) from None
    except ImportError as error:
        raise Unsupported(
            f"a worker of --engine {text} cannot run the work: {error}", hint="install the same limpet there"
        ) from None
    except (ConnectionError, TimeoutError) as error:
        raise Unavailable(
            f"a worker of --engine {text} is gone: {' '.join(str(error).split())[:120] or type(error).__name__}",
            hint="nothing is lost: run the command again",
        ) from None
