"""`Cron`: when a task is pushed by the clock. Five fields as in crontab(5), in UTC or in a time zone.

Each tick has one task id, `cron.<name>.<tick in UTC>`, and a queue accepts an id once. So every worker pushes every
tick, and no lock is needed. A tick that no worker saw within 5 minutes is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from limpet.kernel.errors import Invalid, LimpetError
from limpet.kernel.runtime import Runtime
from limpet.queue.api import Pushed, Queue

LATE_MAX = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
REPEATED_MAX = timedelta(hours=3)
"""No zone sets its clock back by more."""
SOME_DAY = datetime(2028, 12, 31, 23, 59, tzinfo=UTC)

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")


class Cron:
    """A crontab line: `*/5 * * * *`, `0 9 * * mon-fri`, `@daily`; `zone` is an IANA name, and UTC without one.

    A line with a fixed minute and hour comes once a day also when the clocks change: at the first minute after the gap
    if its time does not exist that day, at the first of the two if it exists twice. A line whose minute or hour begins
    with `*` follows the hours that really pass. Debian's cron does the same.

    Raises: Invalid, naming the field or the zone.
    """

    def __init__(self, line: str, zone: str | None = None) -> None:
        from cronsim import CronSimError  # it costs `import limpet` some milliseconds, and few tasks have a cron

        self.line = line
        self._zone = UTC if zone is None else _zone(zone)
        self._fields = NICKNAMES.get(line, line) if isinstance(line, str) else ""
        if len(self._fields.split()) != len(FIELDS):  # the library takes a sixth one, for seconds
            raise Invalid(
                f"cron={line!r} has not five fields", hint="minute hour day month weekday, such as '*/5 * * * *'"
            )
        try:
            last = self.last(SOME_DAY)
        except CronSimError as error:
            raise _bad_field(line, self._fields, str(error)) from None
        if last is None:
            raise Invalid(f"cron={line!r} never comes", hint="no year has that day")

    def __repr__(self) -> str:
        return f"Cron({self.line!r}, {str(self._zone)!r})"

    def last(self, at: datetime) -> datetime | None:
        """The newest tick that is not after `at`, in UTC; None if there was none in 50 years."""
        from cronsim import CronSim

        start = (at + MINUTE).astimezone(self._zone)
        if start.fold:  # an hour that comes twice: its first pass had ticks with later local times
            start = (at + REPEATED_MAX).astimezone(self._zone)
        for tick in CronSim(self._fields, start, reverse=True):
            tick_utc = tick.astimezone(UTC)
            if tick_utc <= at:
                return tick_utc
        return None

    def next(self, at: datetime) -> datetime | None:
        """The first tick after `at`, in UTC; None if there is none in 50 years."""
        from cronsim import CronSim

        for tick in CronSim(self._fields, (at - REPEATED_MAX).astimezone(self._zone)):
            tick_utc = tick.astimezone(UTC)
            if tick_utc > at:
                return tick_utc
        return None


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, AttributeError, OSError):
        raise Invalid(
            f"cron_zone={name!r} is no time zone of this machine",
            hint="an IANA name such as 'Europe/Berlin'; where the system has none, pip install tzdata",
        ) from None


def _bad_field(line: str, fields: str, error: str) -> Invalid:
    """The library names the field that it cannot read, or the day that none of the months has."""
    field = error.removeprefix("Bad ")
    words = dict(zip(FIELDS, fields.split(), strict=True))
    return Invalid(
        f"cron={line!r}: {words.get(field, line)!r} is no {field.replace('-of-', ' of the ')}",
        hint="give a number, a list, a range, or */n; the day must be in one of the months",
    )


class CronPusher:
    """Pushes each tick of some queues, once, at its time."""

    def __init__(self, crons: Sequence[tuple[Queue, Cron]], runtime: Runtime, *, since: datetime | None = None) -> None:
        """`since`: ticks until then are left out."""
        self._crons = crons
        self._runtime = runtime
        self._since = since or datetime.min.replace(tzinfo=UTC)
        self._pushed: dict[str, datetime] = {}
        self.error: LimpetError | None = None
        """Why the newest push failed. The next call makes it again."""

    def push_due(self) -> list[tuple[str, Pushed]]:
        """Push the newest tick of each, unless it was pushed or is too old; queue and task of those that were new.

        Cost: a push with id for each tick.
        """
        now = self._runtime.wall()
        created = []
        self.error = None
        for queue, cron in self._crons:
            tick = cron.last(now)
            if tick is None or tick <= self._since or now - tick > LATE_MAX or self._pushed.get(queue.name) == tick:
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

    def next_tick(self) -> datetime | None:
        """When the next tick of any of them comes."""
        now = self._runtime.wall()
        return min((tick for _, cron in self._crons if (tick := cron.next(now)) is not None), default=None)

    def wait_s(self) -> float:
        """Seconds until the next call: at the next full minute, or sooner after an error."""
        if self.error is not None:
            return 10.0
        now = self._runtime.wall()
        return 60.0 - now.second - now.microsecond / 1e6 + 0.01
