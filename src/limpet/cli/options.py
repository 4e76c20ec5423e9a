"""Options and arguments that commands share, and how their values are read."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated

from limpet.cli import EXIT_FAILED
from limpet.cli.parse import Argument, BadParameter, Context, Exit, Option
from limpet.kernel.errors import Invalid, Missing

if TYPE_CHECKING:
    from limpet.worker.protocol import SignalPipe

STDIN = "-"
ENV_URL = "LIMPET_URL"
UrlOption = Annotated[
    str | None, Option("--url", "-u", envvar=ENV_URL, help="The fleet: ./dir, s3://bucket/prefix, gs://, az://.")
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on stdout.")]


QueueArgument = Annotated[str, Argument(metavar="QUEUE", help="The queue's name.", names="queue")]
QueueOrAllArgument = Annotated[
    str | None, Argument(metavar="QUEUE", help="The queue; without it, all queues of the fleet.", names="queue")
]
QueuesOption = Annotated[
    list[str] | None, Option("--queue", "-q", metavar="QUEUE", help="Only this queue; may be repeated.", names="queue")
]
YesOption = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]
IdArgument = Annotated[str, Argument(metavar="ID", help="The task's id.")]
DELAY_HELP = "such as 90s, 15m, 1h or 2d"
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str) -> float:
    """`90s`, `15m`, `1h` or `2d` in seconds. Nothing else is a duration: a bare number could be anything."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadParameter(f"{text!r} is not a duration; write a whole number and a unit, {DELAY_HELP}")
    return int(found[1]) * _SECONDS[found[2]]


def duration_or_off_s(text: str) -> float:
    """As `duration_s`; `off` is for ever."""
    return float("inf") if text == "off" else duration_s(text)


@dataclass
class LimitOptions:
    """The rules of `limpet check`, which are those of the dashboard's warnings, too."""

    max_age: Annotated[
        float | None,
        Option(
            metavar="TIME", parser=duration_s, help=f"How old the oldest task that has not ended may be, {DELAY_HELP}."
        ),
    ] = None
    max_failed: Annotated[int | None, Option(min=0, help="How many tasks may have failed.")] = None
    max_pending: Annotated[int | None, Option(min=0, help="How many tasks may wait.")] = None
    no_worker: Annotated[
        float | None,
        Option(
            metavar="TIME",
            parser=duration_or_off_s,
            show_default="5m",
            help="How long a task may be due in a queue without a living worker; `off` allows it.",
        ),
    ] = None


def kept_s(text: str) -> float:
    """How long something is kept: a duration, or `forever`."""
    return float("inf") if text == "forever" else duration_s(text)


SinceOption = Annotated[
    float | None,
    Option("--since", metavar="AGE", parser=duration_s, help=f"Only what failed in that time, {DELAY_HELP}."),
]
WhereOption = Annotated[
    str | None,
    Option(
        "--where",
        metavar="TEXT",
        help="Only tasks whose error contains the text; 'error ~ 4[0-9]{2}' is a regular expression. Any case.",
    ),
]


@contextmanager
def open_input(file: str) -> Iterator[IO[bytes]]:
    """The bytes of a file that was named, or of stdin for `-`.   Raises: Missing for one that cannot be read."""
    if file == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open(file, "rb"))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise Missing(f"cannot read {file}: {reason}", hint="check the path; - reads from stdin") from None
        yield stream


def is_typed(context: Context, name: str) -> bool:
    """Whether an option was typed, and is not from the environment or limpet.toml."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def one_url(context: Context, where: str | None, url: str | None) -> str | None:
    """The URL that is typed as an argument or by --url; else --url's, from elsewhere.   Raises: Invalid for two."""
    if where is not None and is_typed(context, "url") and where != url:
        raise Invalid(f"two URLs: {where}, and --url {url}", hint="leave one of them out")
    return where or url


def refuse_path(name: str, kind: str, find: Callable[[], object]) -> None:
    """Raises: Invalid for a path as the name of a new queue or index; `find` looks for one that has that name.

    Such a name is stored as safely as any other, and is most likely a mistake.   Cost: `find`, for a path only.
    """
    if not name or all(part not in ("", ".", "..") for part in name.split("/")):
        return
    try:
        find()
    except Missing:
        raise Invalid(
            f"{name!r} is a path, and not a name for a new {kind}",
            hint=f"give the {kind} a name of letters and digits; --url says where the fleet is",
        ) from None


class SignalFlag:
    """A flag that a signal raises, or `set`. SIGUSR1 calls `on_usr1` instead."""

    def __init__(self, signals: SignalPipe) -> None:
        self.on_usr1: Callable[[], object] = lambda: None
        self._signals = signals
        self._up = False

    def set(self) -> None:
        """Raise the flag, and wake the thread that waits for it."""
        self._up = True
        self._signals.wake()

    def is_set(self) -> bool:
        """Whether it is raised: it stays so."""
        for number in self._signals.read():
            if number == signal.SIGUSR1:
                self.on_usr1()
            else:
                self._up = True
        return self._up

    def wait(self, timeout: float) -> bool:
        """Wait until a signal comes, for so many seconds at most; whether the flag is raised."""
        if not self.is_set():
            select.select([self._signals.fd], [], [], timeout)
        return self.is_set()


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Exit with code 1 when the reader of stdout has closed it. The interpreter must not try to flush the rest."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(EXIT_FAILED) from None
