"""Python's `logging` in a worker process: what handlers log becomes lines of the worker's log, with their task.

Every record has the attributes `limpet_task` (the task's id), `limpet_queue` and `limpet_attempt`, for formats of the
user's own; outside a task they are empty.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from limpet.queue.work import current_task

CHATTY = ("boto3", "botocore", "urllib3", "asyncio")
MESSAGE_CHARS_MAX = 16 * 1024

_plain = logging.Formatter()


class _Forward(logging.Handler):
    """Hands each record on."""

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        self._take(record)


def set_up_logging(take: Callable[[logging.LogRecord], None], *, everything: bool) -> None:
    """Have records of level INFO and above taken, once the user's module is imported.

    A module that has set logging up keeps what it has set up. With `everything` (`--log json`), what it would write to
    stderr or stdout is taken instead, so that nothing but JSON comes out there.
    """
    _name_tasks()
    root = logging.getLogger()
    own = [each for each in root.handlers if everything and _writes_to_terminal(each)]
    for handler in own:
        root.removeHandler(handler)
    if root.handlers and not own:
        return
    if not own and root.level == logging.WARNING:  # Python's default, which nobody has chosen
        root.setLevel(logging.INFO)
        for name in CHATTY:
            if logging.getLogger(name).level == logging.NOTSET:
                logging.getLogger(name).setLevel(logging.WARNING)
    root.addHandler(_Forward(take))


def message_of(record: logging.LogRecord) -> str:
    """What the record says. One whose arguments do not fit its format says so."""
    try:
        said = record.getMessage()
    except (TypeError, ValueError, KeyError) as error:
        said = f"{record.msg!r} does not fit its arguments {record.args!r}: {error}"
    return said[:MESSAGE_CHARS_MAX]


def traceback_of(record: logging.LogRecord) -> str:
    """The traceback and the stack of a record, if it has any."""
    parts = [_plain.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [_plain.formatStack(record.stack_info)] if record.stack_info else []
    return "\n".join(parts)[:MESSAGE_CHARS_MAX]


def _writes_to_terminal(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in (
        sys.stderr,
        sys.stdout,
        sys.__stderr__,
        sys.__stdout__,
    )


def _name_tasks() -> None:
    make = logging.getLogRecordFactory()

    def named(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        task = current_task()
        record.limpet_task = task.id if task else ""
        record.limpet_queue = task.queue if task else ""
        record.limpet_attempt = task.attempt if task else 0
        return record

    logging.setLogRecordFactory(named)
