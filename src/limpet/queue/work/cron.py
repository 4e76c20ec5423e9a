"""`Cron`: when a task is pushed by the clock. Five fields, in UTC, as in crontab(5).

Each tick has one task id, `cron.<name>.<tick>`, which a queue takes once. So every worker pushes every tick, and no
lock is needed. A tick that no worker saw within 5 minutes is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from limpet.errors import Invalid, LimpetError
from limpet.queue.api import Pushed, Queue
from limpet.runtime import Runtime

LATE_MAX = timedelta(minutes=5)
DAYS_MAX = 366 * 9
PUSH_AGAIN_S = 10.0

_NICK = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: list[tuple[str, int, int, Sequence[str]]] = [
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
]


class Cron:
    """A crontab line: `*/5 * * * *`, `0 9 * * mon-fri`, `@daily`.   Raises: Invalid, naming the field."""

    def __init__(self, line: str) -> None:
        self.line = line
        words = _NICK.get(line, line).split() if isinstance(line, str) else []
        if len(words) != len(_FIELDS):
            raise Invalid(
                f"cron={line!r} has not five fields", hint="minute hour day month weekday, such as '*/5 * * * *'"
            )
        sets = [_read(word, line, *field) for word, field in zip(words, _FIELDS, strict=True)]
        self._minutes, self._hours, self._days, self._months, weekdays = sets
        self._weekdays = {day % 7 for day in weekdays}
        self._either_day = not (words[2].startswith("*") or words[4].startswith("*"))
        if self.last(datetime(2028, 12, 31, 23, 59)) is None:
            raise Invalid(f"cron={line!r} never comes", hint="no year has that day")

    def __repr__(self) -> str:
        return f"Cron({self.line!r})"

    def last(self, at: datetime) -> datetime | None:
        """The newest tick that is not after `at`; None if there was none in nine years."""
        day = at.replace(second=0, microsecond=0)
        for _ in range(DAYS_MAX):
            if self._is_on(day):
                for hour in sorted(self._hours, reverse=True):
                    for minute in sorted(self._minutes, reverse=True):
                        if (hour, minute) <= (day.hour, day.minute):
                            return day.replace(hour=hour, minute=minute)
            day = (day - timedelta(days=1)).replace(hour=23, minute=59)
        return None

    def _is_on(self, day: datetime) -> bool:
        """Of two day fields that both say something, either is enough: crontab(5) has it so."""
        if day.month not in self._months:
            return False
        of_month, of_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return of_month or of_week if self._either_day else of_month and of_week


def _read(word: str, line: str, what: str, low: int, high: int, names: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for part in word.lower().split(","):
        span, _, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        with suppress(ValueError):
            step = int(step_text) if "/" in part else 1
            if span == "*":
                first, last = low, high
            else:
                first = _number(first_text, low, names)
                last = _number(last_text, low, names) if dash else high if "/" in part else first
            if low <= first <= last <= high and step > 0:
                found.update(range(first, last + 1, step))
                continue
        raise Invalid(f"cron={line!r}: {part!r} is no {what}", hint=f"give {low}-{high}, a list, a range, or */n")
    return found


def _number(text: str, low: int, names: Sequence[str]) -> int:
    return names.index(text) + low if text in names else int(text)


class CronPusher:
    """Pushes each tick of some queues, once, at its time."""

    def __init__(self, crons: Sequence[tuple[Queue, Cron]], runtime: Runtime) -> None:
        self._crons = crons
        self._runtime = runtime
        self._pushed: dict[str, datetime] = {}
        self.error: LimpetError | None = None

    def push_due(self) -> list[tuple[str, Pushed]]:
        """Push the newest tick of each, unless it was pushed or is too old; queue and task of those that were new.

        A push that failed stands in `error` and is made again by the next call.   Cost: a push with id for each tick.
        """
        now = self._runtime.wall()
        created = []
        self.error = None
        for queue, cron in self._crons:
            tick = cron.last(now)
            if tick is None or now - tick > LATE_MAX or self._pushed.get(queue.name) == tick:
                continue
            try:
                pushed = queue.push({}, id=f"cron.{queue.name}.{tick:%Y%m%dT%H%MZ}")
            except LimpetError as error:
                self.error = error
                continue
            self._pushed[queue.name] = tick
            if pushed.created:
                created.append((queue.name, pushed))
        return created

    def wait_s(self) -> float:
        """How long until the next call: the next full minute, or sooner after an error."""
        if self.error is not None:
            return PUSH_AGAIN_S
        now = self._runtime.wall()
        return 60.0 - now.second - now.microsecond / 1e6 + 0.01
