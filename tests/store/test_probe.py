"""The probe accepts a good store, and names what is wrong with each kind of bad one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from limpet.kernel.doctor import Check, Report, examine
from limpet.kernel.errors import Conflict, Denied, Invalid, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Absent, Always, Blob, Match, Stat, Store, Version, When
from limpet.kernel.store.memory import MemoryStore
from limpet.kernel.store.metered import MeteredStore
from limpet.kernel.store.probe import EtagStyle, probe_conditions, use_etag_style
from limpet.kernel.store.roles import ScopedStore


class IgnoresAbsent(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return super().put(key, data, when=Always() if when == Absent() else when)


class IgnoresMatch(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return super().put(key, data, when=Always() if isinstance(when, Match) else when)


class IgnoresBoth(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return super().put(key, data)


class RefusesEverySwap(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if isinstance(when, Match):
            raise Conflict("never")
        return super().put(key, data, when=when)


class WantsUnquoted(MemoryStore):
    """Like Ceph RGW: a quoted ETag matches nothing."""

    etag_style: EtagStyle = "quoted"

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if isinstance(when, Match) and self.etag_style == "quoted":
            raise Conflict("no object has that ETag")
        return super().put(key, data, when=when)


class AnswersLostSwapsUnclearly(MemoryStore):
    """Like Ceph RGW: a lost swap may answer 500."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        try:
            return super().put(key, data, when=when)
        except Conflict as lost:
            raise OutcomeUnknown("500") from lost


class AppliesWhatItLeavesUnclear(MemoryStore):
    """A stale swap is applied, and its answer is lost."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        try:
            return super().put(key, data, when=when)
        except Conflict as lost:
            if isinstance(when, Match):
                super().put(key, data)
            raise OutcomeUnknown("500") from lost


class ChecksThenActs(MemoryStore):
    """Right when called by one, wrong in a race: looks at the condition, lets another look too, then writes."""

    def __init__(self, folder: str, kind: type[Absent | Match]) -> None:
        super().__init__()
        self._folder, self._kind = folder, kind
        self._met: Counter[Key] = Counter()
        self._looked = threading.Condition()

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if self._folder not in key or not isinstance(when, self._kind):
            return super().put(key, data, when=when)
        found = self._objects.get(key)
        if (found.version if found else None) != (when.version if isinstance(when, Match) else None):
            raise Conflict(f"{key} has changed")
        with self._looked:
            self._met[key] += 1
            self._looked.notify_all()
            self._looked.wait_for(lambda: self._met[key] > 1, timeout=10)
        return super().put(key, data)


class ListsLate(MemoryStore):
    """A list does not show the newest object yet."""

    _newest: Key | None = None

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        version = super().put(key, data, when=when)
        self._newest = key
        return version

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        return (stat for stat in super().list(prefix, after=after) if stat.key != self._newest)


class ListsTheDead(MemoryStore):
    """A list still shows the object that was deleted last."""

    _dead: Stat | None = None

    def delete(self, key: Key) -> None:
        if key in self._objects:
            self._dead = self.head(key)
        super().delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        yield from super().list(prefix, after=after)
        if self._dead and self._dead.key.startswith(prefix + "/"):
            yield self._dead


class ListsBackwards(MemoryStore):
    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        return iter([*super().list(prefix, after=after)][::-1])


class IgnoresAfter(MemoryStore):
    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        return super().list(prefix)


class Reads(MemoryStore):
    """A store with a wrong `get`: some of its arguments are not looked at."""

    def __init__(self, *ignored: str) -> None:
        super().__init__()
        self._ignored = ignored

    def get(self, key: Key, **options: Any) -> Blob:
        return super().get(key, **{name: option for name, option in options.items() if name not in self._ignored})


class FoldsCase(MemoryStore):
    def delete(self, key: Key) -> None:
        super().delete(Key(key.lower()))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return super().put(Key(key.lower()), data, when=when)

    def get(self, key: Key, **options: Any) -> Blob:
        return super().get(Key(key.lower()), **options)


class DropsTheFolder(MemoryStore):
    """Deleting `k` deletes `k/x`, as a careless rmtree would."""

    def delete(self, key: Key) -> None:
        for stat in [*self.list(key)]:
            super().delete(stat.key)
        super().delete(key)


class Truncates(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return super().put(key, data[: 5 << 20], when=when)


class RefusesOddNames(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if "*" in key:
            raise Invalid("no asterisks here", hint="rename it")
        return super().put(key, data, when=when)


class NeverDeletes(MemoryStore):
    def delete(self, key: Key) -> None:
        raise Denied("deletes are not allowed", hint="ask for s3:DeleteObject")


class ForgetsDeletes(MemoryStore):
    """Acknowledges every delete, and keeps the large object."""

    def delete(self, key: Key) -> None:
        if ".large/" not in key:
            super().delete(key)


class CreatesBySwap(MemoryStore):
    """A swap of an object that is gone creates it."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return super().put(key, data, when=when if key in self._objects or when == Absent() else Always())


class CreatesBySwapUnclearly(MemoryStore):
    """The same, with an answer that tells nothing."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if isinstance(when, Match) and key not in self._objects:
            super().put(key, data)
            raise OutcomeUnknown("500")
        return super().put(key, data, when=when)


class KeepsTheLoser(MemoryStore):
    """A create that is refused is written all the same."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        try:
            return super().put(key, data, when=when)
        except Conflict:
            if when == Absent():
                super().put(key, data)
            raise


class Clock(MemoryStore):
    """LastModified off by `skew`, or cut to whole seconds."""

    def __init__(self, *, skew: timedelta = timedelta(), whole: bool = False) -> None:
        super().__init__()
        self._skew, self._whole = skew, whole

    def _stamp(self, modified: datetime) -> datetime:
        return (modified + self._skew).replace(microsecond=0 if self._whole else modified.microsecond)

    def head(self, key: Key) -> Stat:
        stat = super().head(key)
        return replace(stat, modified=self._stamp(stat.modified))


class ReadOnly(MemoryStore):
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        raise Denied("read-only")


class FailsAfter(MemoryStore):
    """Out of reach after some puts."""

    def __init__(self, puts: int) -> None:
        super().__init__()
        self._left = puts

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        self._left -= 1
        if self._left < 0:
            raise Unavailable("connection refused", hint="is the server up?")
        return super().put(key, data, when=when)


def left_in(store: Store) -> list[str]:
    return [stat.key for stat in store.list()]


def failed(report: Report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if not check.ok}


# The quick form.


def test_quick_accepts_a_good_store_with_six_requests() -> None:
    meter = MeteredStore(MemoryStore())
    with meter.measure() as cost:
        findings = probe_conditions(meter)
    assert cost.requests == {"put": 4, "get": 1, "delete": 1}
    assert (findings.conditional, findings.etag_style) == (True, "quoted")
    assert findings.by.startswith("limpet ")
    assert datetime.fromisoformat(findings.at).tzinfo is not None
    assert left_in(meter) == []


def test_quick_switches_to_unquoted_etags_with_seven_requests() -> None:
    store = WantsUnquoted()
    meter = MeteredStore(store)
    with meter.measure() as cost:
        findings = probe_conditions(ScopedStore(meter, "p"))
    assert cost.requests == {"put": 5, "get": 1, "delete": 1}
    assert (findings.etag_style, store.etag_style) == ("unquoted", "unquoted")
    assert probe_conditions(store).etag_style == "unquoted"


def test_the_style_reaches_the_store_below_its_wrappers() -> None:
    store = WantsUnquoted()
    assert use_etag_style(ScopedStore(MeteredStore(store), "p"), "unquoted")
    assert store.etag_style == "unquoted"
    assert not use_etag_style(MeteredStore(MemoryStore()), "unquoted")


@pytest.mark.parametrize(
    ("store", "what"),
    [
        (IgnoresAbsent(), "ignores conditions: it creates an object that exists (If-None-Match: *)\n"),
        (IgnoresMatch(), "ignores conditions: it swaps an object that has changed (If-Match)\n"),
        (IgnoresBoth(), "(If-None-Match: *) and swaps an object that has changed (If-Match)\n"),
        (RefusesEverySwap(), "refuses a swap that names the right version\n"),
        (AppliesWhatItLeavesUnclear(), "applied one that it had to refuse\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_quick_refuses_and_cleans_up(store: MemoryStore, what: str) -> None:
    meter = MeteredStore(store)
    with pytest.raises(Unsupported, match=what.translate({ord(c): f"\\{c}" for c in "()*"})) as refused:
        probe_conditions(meter)
    assert "honours If-None-Match and If-Match" in refused.value.hint
    assert meter.snapshot().total() <= 7
    assert left_in(store) == []


def test_a_failed_switch_is_undone() -> None:
    class Stubborn(RefusesEverySwap):
        etag_style: EtagStyle = "quoted"

    store = Stubborn()
    with pytest.raises(Unsupported):
        probe_conditions(store)
    assert store.etag_style == "quoted"


def test_quick_takes_an_unclear_answer_for_a_refusal() -> None:
    assert probe_conditions(AnswersLostSwapsUnclearly()).conditional


# The thorough form.


@pytest.mark.parametrize("store", [MemoryStore(), WantsUnquoted(), AnswersLostSwapsUnclearly()])
def test_examine_accepts_a_good_store(store: MemoryStore) -> None:
    seen: list[Check] = []
    report = examine(store, rounds=1, progress=seen.append)
    assert failed(report) == {}
    assert report.ok
    assert report.findings is not None
    assert seen == report.checks
    assert [spent.verb for spent in report.latency] == ["put", "swap", "head", "get", "list", "delete"]
    assert all(0 <= spent.p50_ms <= spent.p95_ms for spent in report.latency)
    assert left_in(store) == []


def test_examine_sees_every_acknowledged_swap() -> None:
    detail = {check.name: check.detail for check in examine(MemoryStore(), rounds=2).checks}
    assert detail["create race"] == "2 x 32 creates at once, one winner each"
    assert detail["swap race"] == "80 swaps by 8 writers, none lost"


def test_a_report_survives_json() -> None:
    report = examine(MemoryStore(), rounds=1)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


REQUIRED = [
    (IgnoresAbsent(), {"conditional writes", "create race"}),
    (IgnoresMatch(), {"conditional writes", "swap race", "swap of a missing object"}),
    (IgnoresBoth(), {"conditional writes", "create race", "swap race", "swap of a missing object"}),
    (ChecksThenActs(".create/", Absent), {"create race"}),
    (ChecksThenActs(".swap/", Match), {"swap race"}),
    (CreatesBySwap(), {"swap of a missing object"}),
    (CreatesBySwapUnclearly(), {"swap of a missing object"}),
    (KeepsTheLoser(), {"conditional writes", "create race"}),
    (Reads("if_match"), {"conditional reads"}),
    (Reads("if_none_match"), {"conditional reads"}),
    (Reads("range"), {"range read"}),
    (Truncates(), {"large object"}),
    (ListsLate(), {"list after write"}),
    (ListsBackwards(), {"listing order"}),
    (IgnoresAfter(), {"listing order"}),
    (DropsTheFolder(), {"object beside folder"}),
    (FoldsCase(), {"names"}),
]


@pytest.mark.parametrize(("store", "names"), REQUIRED, ids=[type(store).__name__ for store, _ in REQUIRED])
def test_examine_refuses_and_cleans_up(store: MemoryStore, names: set[str]) -> None:
    report = examine(store, rounds=1)
    assert not report.ok
    assert names <= failed(report).keys()
    assert all(check.detail and "\n" not in check.detail and (check.ok or check.hint) for check in report.checks)
    assert not store._objects


def test_races_say_how_bad_it_is() -> None:
    detail = failed(examine(ChecksThenActs(".create/", Absent), rounds=1))["create race"]
    assert int(detail.split()[0]) > 1
    detail = failed(examine(ChecksThenActs(".swap/", Match), rounds=1))["swap race"]
    assert int(detail.split()[0]) > 0


@pytest.mark.parametrize(
    ("store", "name", "detail"),
    [
        (ListsTheDead(), "list after delete", "still shows the object"),
        (RefusesOddNames(), "odd names", "no asterisks here"),
        (Clock(skew=timedelta(hours=2)), "clock", "7200.0 s ahead of this machine"),
        (Clock(skew=timedelta(hours=-2)), "clock", "LastModified was 7200.0 s behind now()"),
        (NeverDeletes(), "clean-up", "deletes are not allowed"),
        (ForgetsDeletes(), "clean-up", ".large/one.json among them"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_limpet_can_live_with_is_shown(store: MemoryStore, name: str, detail: str) -> None:
    report = examine(store, rounds=1)
    check = next(check for check in report.checks if check.name == name)
    assert (check.ok, check.required) == (False, False)
    assert detail in check.detail
    assert check.hint


@pytest.mark.parametrize(("whole", "unit"), [(True, "whole seconds"), (False, "microseconds")])
def test_the_resolution_of_last_modified_is_shown(whole: bool, unit: str) -> None:
    report = examine(Clock(whole=whole), rounds=1)
    detail = {check.name: check.detail for check in report.checks}["clock"]
    assert report.ok
    assert detail.endswith(f"LastModified in {unit}")


@pytest.mark.parametrize("act", [probe_conditions, examine])
def test_both_stop_at_the_first_request_of_a_read_only_key(act: Callable[[Store], object]) -> None:
    meter = MeteredStore(ReadOnly())
    with pytest.raises(Denied):
        act(meter)
    assert meter.snapshot().requests == {"put": 1}


def test_a_store_out_of_reach_is_not_examined() -> None:
    with pytest.raises(Unavailable):
        examine(FailsAfter(0))


def test_an_error_in_mid_examination_is_a_failed_check() -> None:
    store = FailsAfter(3)
    report = examine(store, rounds=1)
    first = report.checks[0]
    assert (first.ok, first.detail, first.hint) == (False, "connection refused", "is the server up?")
    assert not report.ok
    assert left_in(store) == []


def test_an_interrupted_examination_cleans_up() -> None:
    store = MemoryStore()

    def interrupt(check: Check) -> None:
        if check.name == "listing order":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(store, rounds=1, progress=interrupt)
    assert left_in(store) == []
