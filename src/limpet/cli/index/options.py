"""What the commands of `limpet index` share: arguments and options, damaged shards, and `--engine`: where an import or
a compile does its work: here, in threads, in processes, or on a Dask cluster."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import limpet
from limpet.cli import EXIT_FAILED, say
from limpet.cli.parse import Argument, Exit, Option
from limpet.kernel.errors import Invalid, Unavailable, Unsupported
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.index import Index
    from limpet.index.codec import Field, Schema
    from limpet.index.reader import DamagedShard, OnDamage

IndexArgument = Annotated[str, Argument(metavar="INDEX", help="The index's name.", names="index")]
KeysArgument = Annotated[list[str], Argument(metavar="KEY", help="Keys of records.")]

SkipDamagedOption = Annotated[
    bool, Option("--skip-damaged", help="Leave damaged shards out, name each on stderr, and end with exit code 1.")
]

EngineOption = Annotated[
    str | None,
    Option(
        "--engine",
        metavar="ENGINE",
        show_default="this process",
        help="Spread the work: processes=N, threads=N, or dask=tcp://HOST:PORT.",
    ),
]


@contextmanager
def skipping(skip_damaged: bool) -> Iterator[OnDamage | None]:
    """The callback for a reader. If shards were left out, the command ends with exit code 1 when all else is done."""
    count = 0

    def report(left_out: DamagedShard) -> None:
        nonlocal count
        count += 1
        say(f"damaged: {left_out}", err=True)

    yield report if skip_damaged else None
    if count:
        shards = many(count, "damaged shard was", "damaged shards were")
        say(f"limpet: {shards} left out: the output is incomplete", err=True)
        say("hint: restore them from a backup, or `limpet index verify --accept-loss`", err=True)
        raise Exit(EXIT_FAILED)


def opened(url: str | None, name: str, *, read_only: bool = False) -> Index[dict[str, Any]]:
    """An index that exists.   Raises: Missing."""
    from limpet.app.indexes import demand_index

    return demand_index(limpet.open(url, create=False, read_only=read_only).check(), name)


def key_of(schema: Schema, text: str) -> str | int:
    """The key for the text of an argument.   Raises: Invalid."""
    from limpet.index.formats.api import from_text

    kind = schema.fields[schema.shape.key_column].type
    if kind != "integer":
        return text
    try:
        key: str | int | None = from_text(kind)(text)
    except Invalid as error:
        raise Invalid(f"the key {schema.key!r}: {error}") from None
    return "" if key is None else key


def field_of(text: str, *, always_optional: bool = False) -> Field:
    """The column for `name:type`, with `?` at the end if it may be null.   Raises: Invalid."""
    from limpet.index.codec import Field
    from limpet.index.values import KINDS

    name, colon, typed = text.rpartition(":")
    kind = typed.removesuffix("?")
    for known in KINDS:
        if kind == known and name and colon:
            return Field(name, known, required=not always_optional and not typed.endswith("?"))
    why = f"there is no type {kind!r}" if name and colon else "it has no type"
    raise Invalid(
        f"{text!r} is not a column: {why}",
        hint=f"write name:type, or name:type? if it may be null; the types are {', '.join(KINDS)}",
    )


# ---- --engine ----

WORKERS_MAX = 256
CONNECT_S = 10
_HINT = "write processes=4, threads=4, or dask=tcp://HOST:PORT"


@dataclass(frozen=True, slots=True)
class Engine:
    """An executor, or None for this process; `workers`: the number of jobs that run concurrently."""

    executor: Executor | None
    workers: int = 1


@contextmanager
def engine_of(text: str | None, url: str) -> Iterator[Engine]:
    """The engine that `--engine` names, for a fleet at `url`, while the block lasts.

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
    pool: Executor
    if kind == "threads":
        pool = ThreadPoolExecutor(workers, thread_name_prefix="limpet-engine")
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_child)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_child() -> None:
    """In a worker process: leave Ctrl-C to the parent, and exit at once when the parent is gone."""
    from multiprocessing import connection, parent_process

    from limpet.kernel.runtime import system

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
