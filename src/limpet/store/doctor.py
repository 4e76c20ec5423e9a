"""The thorough examination of a store: what `limpet doctor` shows.

Each function tries one thing that Limpet relies on, and returns a line on what it saw, or raises. All objects lie below
`probe/` and are deleted at the end, also when a check fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from limpet.errors import Conflict, LimpetError, Missing, NotModified, OutcomeUnknown, Unavailable, Unsupported
from limpet.keys import Key, join, probe_key
from limpet.records import decode, encode
from limpet.runtime import Runtime, system
from limpet.store.api import Absent, Match, Put, Store, Version
from limpet.store.probe import Findings, quick

CREATORS = 32
SWAPPERS = 8
SWAPS_PER_ROUND = 5
SAMPLES_PER_ROUND = 5
START_S = 0.02
RACE_S = 30.0
PAUSE_S_MAX = 0.004
SKEW_S_MAX = 60.0
LARGE_BYTES = 8 << 20

HINT = "Limpet relies on this: use a directory, or a bucket of S3, GCS, Azure, SeaweedFS or Ceph"

USER_NAMES = [
    "Case",
    "case",
    "a b",
    "100%",
    "%41",
    "a/b",
    "..",
    ".hidden",
    "\u00e9",
    "e\u0301",
    "~",
    "#1?x=y",
    "x" * 300,
]
ODD_NAMES = [
    "a b",
    "a+b",
    "a%2Fb",
    "a#b",
    "a?b=c&d",
    "a'b\"c",
    "a:b*c|d",
    "\u00e9",
    "e\u0301",
    "\U0001f41a",
    "a.",
]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long one verb took, one call after another. A `swap` is a put with `Match`."""

    verb: str
    calls: int
    p50_ms: float
    p95_ms: float


class Lab:
    """The store under examination, and every key that was used on it."""

    def __init__(self, store: Store, runtime: Runtime, rounds: int) -> None:
        self.store = store
        self.runtime = runtime
        self.rounds = rounds
        self.keys: dict[Key, None] = {}
        self.latency: list[Latency] = []
        self.findings: Findings | None = None
        self._run = runtime.new_id()

    def key(self, folder: str, name: str) -> Key:
        """A key for one check; each check has a folder of its own."""
        return self.use(probe_key(f"{self._run}.{folder}", name))

    def use(self, key: Key) -> Key:
        """`key`, noted for the clean-up."""
        self.keys[key] = None
        return key

    def listed(self, folder: str, *, after: Key | None = None) -> list[Key]:
        """The keys that a list of `folder` shows."""
        return [stat.key for stat in self.store.list(folder, after=after)]


def _expect(holds: object, otherwise: str, *, hint: str = HINT) -> None:
    if not holds:
        raise Unsupported(otherwise, hint=hint)


def _folder(key: Key) -> str:
    return key.rpartition("/")[0]


def _conditional_writes(lab: Lab) -> str:
    lab.findings = quick(lab.store, runtime=lab.runtime)
    return f"create and swap are honoured ({lab.findings.etag_style} ETags)"


def _create_race(lab: Lab) -> str:
    for turn in range(lab.rounds):
        _one_create_race(lab, lab.key("create", str(turn)))
    return f"{lab.rounds} x {CREATORS} creates at once, one winner each"


def _one_create_race(lab: Lab, key: Key) -> None:
    answers = _answers(lab, lambda n: lab.store.put(key, encode(n), when=Absent()), CREATORS)
    winners = [n for n, error in enumerate(answers) if error is None]
    _expect(len(winners) < 2, f"{len(winners)} of {CREATORS} creates of one name at once were acknowledged")
    # F1: the winner may have been told that it lost; then what is kept names it.
    kept = decode(lab.store.get(key).data, int, what=key)
    _expect(winners in ([], [kept]), "the create that was acknowledged is not the one that was kept")


def _swap_race(lab: Lab) -> str:
    key = lab.key("swap", "race")
    lab.store.put(key, encode([]), when=Absent())
    acknowledged: list[str] = []
    until_s = lab.runtime.elapsed_s() + RACE_S
    _answers(lab, lambda n: _add_marks(lab, key, n, until_s, acknowledged), SWAPPERS)
    kept = decode(lab.store.get(key).data, list[str], what=key)
    lost = set(acknowledged) - set(kept)
    _expect(acknowledged, f"no swap got through in {RACE_S:.0f} s")
    _expect(not lost, f"{len(lost)} of {len(acknowledged)} acknowledged swaps by {SWAPPERS} writers were lost")
    return f"{len(acknowledged)} swaps by {SWAPPERS} writers, none lost"


def _add_marks(lab: Lab, key: Key, writer: int, until_s: float, acknowledged: list[str]) -> None:
    """Add this writer's marks to the list in `key`, one swap each; give up quietly at `until_s`."""
    marks = [f"{writer}.{n}" for n in range(lab.rounds * SWAPS_PER_ROUND)]
    while marks and lab.runtime.elapsed_s() < until_s:
        try:
            blob = lab.store.get(key)
            kept = decode(blob.data, list[str], what=key)
            # Without a pause, the writers of a fast store would hardly ever meet.
            lab.runtime.sleep(lab.runtime.rng.uniform(0, PAUSE_S_MAX))
            if marks[0] not in kept:
                lab.store.put(key, encode([*kept, marks[0]]), when=Match(blob.version))
        except (Conflict, OutcomeUnknown):
            continue
        except Unavailable:
            lab.runtime.sleep(lab.runtime.rng.uniform(0.1, 1.0))
            continue
        acknowledged.append(marks.pop(0))


def _answers(lab: Lab, call: Callable[[int], object], times: int) -> list[LimpetError | None]:
    """What `call(0)` ... `call(times - 1)`, all at once, met. An error that no race explains is raised."""
    start_s = lab.runtime.elapsed_s() + START_S

    def one(n: int) -> LimpetError | None:
        lab.runtime.sleep(start_s - lab.runtime.elapsed_s())
        try:
            call(n)
        except LimpetError as error:
            return error
        return None

    answers = lab.runtime.fan_out(one, range(times), at_once=times)
    for error in answers:
        if error is not None and not isinstance(error, Conflict | OutcomeUnknown | Unavailable):
            raise error
    return answers


def _swap_missing(lab: Lab) -> str:
    gone = lab.key("missing", "gone")
    version = lab.store.put(gone, b"1", when=Absent())
    lab.store.delete(gone)
    lab.store.delete(gone)
    try:
        lab.store.put(gone, b"2", when=Match(version))
    except (Conflict, OutcomeUnknown):
        _expect_missing(lab, gone)
        return "refused, and nothing is created"
    raise Unsupported("a swap of a deleted object was acknowledged", hint=HINT)


def _expect_missing(lab: Lab, key: Key) -> None:
    try:
        lab.store.head(key)
    except Missing:
        return
    raise Unsupported(f"{key} is there, and must not be", hint=HINT)


def _list_after_write(lab: Lab) -> str:
    for n in range(lab.rounds * 3):
        key = lab.key("write", str(n))
        lab.store.put(key, b"{}", when=Absent())
        _expect(key in lab.listed(_folder(key)), "a list right after a put does not show the new object")
    return "every put is in the next list"


def _list_after_delete(lab: Lab) -> str:
    for n in range(lab.rounds * 3):
        key = lab.key("delete", str(n))
        lab.store.put(key, b"{}")
        lab.store.delete(key)
        _expect(key not in lab.listed(_folder(key)), "a list right after a delete still shows the object")
    return "no deleted object is in the next list"


def _listing_order(lab: Lab) -> str:
    folder = _folder(lab.key("order", "folder"))
    keys = [lab.use(join(folder, name)) for name in ("b", "a/x", "a", "a-b", "a.b", "a0", "B", "A~", "ab/y")]
    _put_all(lab, dict.fromkeys(keys, b"{}"))
    ordered = sorted(keys, key=str.encode)
    _expect(lab.listed(folder) == ordered, "a list is not in the byte order of the keys")
    for n, after in enumerate(ordered):
        rest = lab.listed(folder, after=after)
        _expect(rest == ordered[n + 1 :], f"a list after {after} does not go on right behind it")
    return "in the byte order of the keys, resumed after each of them"


def _object_and_folder(lab: Lab) -> str:
    outer = lab.key("nested", "k")
    inner = lab.use(join(outer, "x.json"))
    _put_all(lab, {outer: b"outer", inner: b"inner"})
    _expect(lab.listed(_folder(outer)) == [outer, inner], "a list does not show both k and k/x")
    _expect(lab.listed(outer) == [inner], "a list below k shows k itself")
    dirs = [*lab.store.list_dirs(_folder(outer))]
    _expect(dirs == [outer.rpartition("/")[2]], f"the folders beside k are {dirs}")
    lab.store.delete(outer)
    _expect(lab.store.get(inner).data == b"inner", "deleting k took k/x with it")
    return "k and k/x live side by side"


def _conditional_reads(lab: Lab) -> str:
    key = lab.key("reads", "one")
    old = lab.store.put(key, b"old")
    new = lab.store.put(key, b"new", when=Match(old))
    _expect(lab.store.get(key, if_match=new).data == b"new", "if_match with the right version gives other bytes")
    _expect(lab.store.get(key, if_none_match=old).data == b"new", "if_none_match with an old version gives other bytes")
    _expect(_raises(Conflict, lambda: lab.store.get(key, if_match=old)), "if_match with an old version is ignored")
    _expect(_raises(NotModified, lambda: lab.store.get(key, if_none_match=new)), "if_none_match is ignored")
    return "if_match and if_none_match are honoured"


def _raises(kind: type[LimpetError], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def _range_read(lab: Lab) -> str:
    key, body = lab.key("range", "one"), bytes(range(256)) * 4
    version = lab.store.put(key, body)
    for start, stop in ((0, 1), (10, 300), (1000, 5000)):
        blob = lab.store.get(key, range=(start, stop), if_match=version)
        _expect(blob.data == body[start:stop], f"the range {start}..{stop} gives other bytes")
        _expect((blob.size, blob.version) == (len(body), version), "a range read tells a wrong size or version")
    return "right bytes, size and version"


def _names(lab: Lab) -> str:
    return _keep_all(lab, [lab.key("names", name) for name in USER_NAMES], hint=HINT)


def _odd_names(lab: Lab) -> str:
    folder = _folder(lab.key("odd", "folder"))
    keys = [lab.use(join(folder, name)) for name in ODD_NAMES]
    return _keep_all(lab, keys, hint="Limpet encodes names, so this harms only keys that you build yourself")


def _keep_all(lab: Lab, keys: list[Key], *, hint: str) -> str:
    _put_all(lab, {key: key.encode() for key in keys})
    for key, found in lab.store.get_many(keys).items():
        if isinstance(found, LimpetError):
            raise found
        _expect(found.data == key.encode(), f"{key} reads back as another object", hint=hint)
    missing = {*keys}.difference(lab.listed(_folder(keys[0])))
    _expect(not missing, f"a list does not show {', '.join(sorted(missing))}", hint=hint)
    return f"{len(keys)} names kept apart and listed as written"


def _put_all(lab: Lab, bodies: dict[Key, bytes]) -> None:
    for result in lab.store.put_many(Put(key, data) for key, data in bodies.items()).values():
        if isinstance(result, LimpetError):
            raise result


def _large_object(lab: Lab) -> str:
    key, body = lab.key("large", "one"), lab.runtime.rng.randbytes(LARGE_BYTES)
    lab.store.put(key, body)
    _expect(lab.store.head(key).size == len(body), "a HEAD tells a wrong size")
    _expect(lab.store.get(key, size_max=LARGE_BYTES).data == body, "other bytes came back")
    return f"{LARGE_BYTES >> 20} MiB written and read back"


def _clock(lab: Lab) -> str:
    key = lab.key("clock", "one")
    stamps, skews_s = [], []
    for n in range(lab.rounds * 2):
        before = lab.runtime.wall()
        lab.store.put(key, encode(n))
        middle = before + (lab.runtime.wall() - before) / 2
        stamps.append(lab.store.head(key).modified)
        skews_s.append((stamps[-1] - middle).total_seconds())
    bound = lab.store.now()
    lab.store.put(key, b"{}")
    ahead = bound - lab.store.head(key).modified
    _expect(ahead <= timedelta(seconds=1), f"a later LastModified was {ahead.total_seconds():.1f} s behind now()")
    skew_s = sorted(skews_s)[len(skews_s) // 2]
    seen = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this machine, LastModified in {_unit(stamps)}"
    _expect(abs(skew_s) <= SKEW_S_MAX, seen, hint="set this machine's clock (NTP); locks stay safe meanwhile")
    return seen


def _unit(stamps: Iterable[datetime]) -> str:
    micros = [stamp.microsecond for stamp in stamps]
    if not any(micros):
        return "whole seconds"
    return "microseconds" if any(micro % 1000 for micro in micros) else "milliseconds"


def _speed(lab: Lab) -> str:
    store, body = lab.store, b"x" * 1024
    keys = [lab.key("speed", str(n)) for n in range(lab.rounds * SAMPLES_PER_ROUND)]
    versions: dict[Key, Version] = {}
    verbs: dict[str, Callable[[Key], object]] = {
        "put": lambda key: versions.update({key: store.put(key, body)}),
        "swap": lambda key: store.put(key, body + b"y", when=Match(versions[key])),
        "head": store.head,
        "get": store.get,
        "list": lambda key: lab.listed(_folder(key)),
        "delete": store.delete,
    }
    for verb, call in verbs.items():
        took_ms = sorted(_took_ms(lab.runtime, call, key) for key in keys)
        p50_ms, p95_ms = (round(took_ms[int(share * (len(took_ms) - 1))], 3) for share in (0.5, 0.95))
        lab.latency.append(Latency(verb=verb, calls=len(keys), p50_ms=p50_ms, p95_ms=p95_ms))
    return "p50 " + ", ".join(f"{spent.verb} {spent.p50_ms:.1f} ms" for spent in lab.latency)


def _took_ms(runtime: Runtime, call: Callable[[Key], object], key: Key) -> float:
    start_s = runtime.elapsed_s()
    call(key)
    return (runtime.elapsed_s() - start_s) * 1000


class Planned(NamedTuple):
    """A check to make; Limpet must not be used where a required one fails."""

    name: str
    required: bool
    work: Callable[[Lab], str]


CHECKS = (
    Planned("conditional writes", True, _conditional_writes),
    Planned("create race", True, _create_race),
    Planned("swap race", True, _swap_race),
    Planned("swap of a missing object", True, _swap_missing),
    Planned("conditional reads", True, _conditional_reads),
    Planned("range read", True, _range_read),
    Planned("large object", True, _large_object),
    Planned("list after write", True, _list_after_write),
    # A deleted object that lingers in a list reads as Missing, which every reader expects (F22).
    Planned("list after delete", False, _list_after_delete),
    Planned("listing order", True, _listing_order),
    Planned("object beside folder", True, _object_and_folder),
    Planned("names", True, _names),
    # Limpet encodes users' names, so it never writes these itself.
    Planned("odd names", False, _odd_names),
    # Clocks decide when a lock may be taken over, never who holds it (F13).
    Planned("clock", False, _clock),
    Planned("speed", False, _speed),
)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried. Limpet must not be used where a `required` one failed."""

    name: str
    ok: bool
    required: bool
    detail: str
    hint: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole examination; `ok` when every required check is."""

    ok: bool
    checks: list[Check]
    latency: list[Latency]
    findings: Findings | None


def examine(
    store: Store,
    *,
    rounds: int = 3,
    progress: Callable[[Check], None] = lambda check: None,
    runtime: Runtime | None = None,
) -> Report:
    """Try everything that Limpet relies on; `progress` gets each check as it ends.

    Raises: Denied, Unavailable or OutcomeUnknown of the first request; later errors are failed checks.
    Cost: three rounds take some 1,000 requests and 8 MiB each way. Crash: objects below probe/ remain.
    """
    lab = Lab(store, runtime or system(), rounds)
    checks: list[Check] = []

    def make(planned: Planned) -> None:
        checks.append(_made(lab, planned))
        progress(checks[-1])

    store.put(lab.key("first", "first"), b"{}")
    try:
        for planned in CHECKS:
            make(planned)
    finally:
        make(Planned("clean-up", False, _clean_up))
    ok = all(check.ok for check in checks if check.required)
    return Report(ok=ok, checks=checks, latency=lab.latency, findings=lab.findings)


def _made(lab: Lab, planned: Planned) -> Check:
    name, required, work = planned
    try:
        return Check(name=name, ok=True, required=required, detail=work(lab))
    except LimpetError as error:
        return Check(name=name, ok=False, required=required, detail=str(error), hint=error.hint)


def _clean_up(lab: Lab) -> str:
    errors = [error for error in lab.store.delete_many(lab.keys).values() if error is not None]
    if errors:
        raise errors[0]
    root = next(iter(lab.keys)).partition("/")[0]
    back = [key for key in lab.listed(root) if key in lab.keys]
    if back:
        raise Unsupported(
            f"{len(back)} of {len(lab.keys)} deleted objects are still there, {back[0]} among them",
            hint=f"delete what is left below {root}/ by hand",
        )
    return f"{len(lab.keys)} objects deleted"
