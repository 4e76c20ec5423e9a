"""The records that every system is given: a company by its domain. A record follows from its number and its wave.

Wave 0 is loaded, wave 1 is upserted: half of it replaces records of wave 0, half is new. As a line of ours a record is
about 87 bytes. Neither the order of the domains nor that of the times follows the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

__all__ = ["COLUMNS", "Company", "Fields", "Months", "Upsert", "domain", "expected", "made", "probes", "tallied"]

COLUMNS = ("domain", "company", "version", "updated_at")

Fields = tuple[str, str, int, datetime]
Months = dict[str, tuple[int, int]]
"""What a scan answers: by month of `updated_at`, how many records, and the sum of their versions."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS = _words(
    "amber birch cedar delta ember fjord grove haven inlet jetty karst lotus maple north ocean pearl "
    "quartz ridge slate tidal umber vista willow xenon yonder zephyr anchor beacon canyon drift elm flint"
)
TRADES = _words("Freight Robotics Bakery Software Textiles Insurance Optics Timber")
FORMS = _words("GmbH Ltd Inc AG SA BV Oy plc")
ENDS = _words("com org net io de fr co app")
YEARS = (datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC))
YEAR_US = 365 * 86_400 * 1_000_000
VERSIONS = 2_000


@dataclass(frozen=True, slots=True)
class Company:
    """The record as a user of Limpet would write it."""

    domain: str
    company: str
    version: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Upsert:
    """Which numbers a second wave holds, after `loaded` of the first: `n`, half of them old, spread out, half new."""

    loaded: int
    n: int

    def numbers(self) -> Iterator[int]:
        """All of them, the old ones first."""
        yield from range(0, self._olds * self._step, self._step)
        yield from range(self.loaded, self.loaded + self.n - self._olds)

    def wave(self, number: int) -> int:
        """The wave whose record of that number stands in the end."""
        old = number % self._step == 0 and number < self._olds * self._step
        return 1 if number >= self.loaded or old else 0

    @property
    def total(self) -> int:
        """How many records there are in the end."""
        return self.loaded + self.n - self._olds

    @property
    def _olds(self) -> int:
        return self.n // 2

    @property
    def _step(self) -> int:
        return max(1, self.loaded // max(1, self._olds))


def made(number: int, wave: int = 0) -> Fields:
    """The record of a number."""
    mixed = _mixed(number)
    trade, form = TRADES[mixed >> 13 & 7], FORMS[mixed >> 16 & 7]
    first, second, third = (WORDS[mixed >> shift & 31].title() for shift in (0, 5, 24))
    company = f"{first} {second} {third} {trade} {form}"
    return domain(number), company, _version(mixed, wave), _time(mixed, wave)


def domain(number: int) -> str:
    """The key of a number."""
    mixed = _mixed(number)
    return f"{WORDS[mixed & 31]}-{WORDS[mixed >> 5 & 31]}-{number:x}.{ENDS[mixed >> 10 & 7]}"


def tallied(upsert: Upsert) -> Months:
    """What a scan must answer in the end."""
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for number in range(upsert.total):
        mixed, wave = _mixed(number), upsert.wave(number)
        month = _time(mixed, wave).isoformat()[:7]
        counts[month] += 1
        sums[month] += _version(mixed, wave)
    return {month: (counts[month], sums[month]) for month in sorted(counts)}


def probes(upsert: Upsert, n: int, *, first: int = 0) -> Sequence[int]:
    """The numbers of `n` records to look up, old and new ones alike, spread over all of them."""
    return [(_mixed(number) * 7 + first) % upsert.total for number in range(first, first + n)]


def expected(upsert: Upsert, number: int) -> Fields:
    """The record that a lookup must answer in the end."""
    return made(number, upsert.wave(number))


def _mixed(number: int) -> int:
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF
    return mixed ^ mixed >> 29


def _version(mixed: int, wave: int) -> int:
    return (mixed >> 20) % VERSIONS + wave


def _time(mixed: int, wave: int) -> datetime:
    return YEARS[wave] + timedelta(microseconds=(mixed >> 7) % YEAR_US)
