"""Checks everything that Limpet relies on in a store: `limpet doctor`.

Each check is a function that tries one thing, and returns a line about what it saw, or raises. All objects are below
`probe/` and are deleted at the end, also when a check fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from limpet.kernel.errors import Conflict, Denied, LimpetError, NotModified, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import Key, join, probe_key
from limpet.kernel.records import decode, encode
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Absent, Match, Put, Store, Version
from limpet.kernel.store.directory import DirectoryStore
from limpet.kernel.store.probe import Findings, probe_conditions
from limpet.kernel.wording import many

CREATORS = 32
KEEPS_NOT = "the store does not keep what Limpet needs: use another one"
SWAPPERS = 8
SWAPS_PER_ROUND = 5
SAMPLES_PER_ROUND = 5
START_S = 0.02
RACE_S = 30.0
SKEW_S_MAX = 60.0
LARGE_BYTES = 8 << 20

HINT = "Limpet relies on this: use a directory, or a bucket of S3, GCS, Azure, SeaweedFS or Ceph"

USER_NAMES = [
    *("Case", "case", "a b", "100%", "%41", "a/b", "..", ".hidden", "\u00e9", "e\u0301", "~", "#1?x=y"),
    "x" * 300,
]
ODD_NAMES = ["a b", "a+b", "a%2Fb", "a#b", "a?b=c&d", "a'b\"c", "a:b*c|d", "\u00e9", "e\u0301", "\U0001f41a", "a."]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long one verb took, one call after another. A `swap` is a put with `Match`."""

    verb: str
    calls: int
    p50_ms: float
    p95_ms: float


class DoctorContext:
    """The store that is checked, every key that was used in it, and the results so far."""

    def __init__(self, store: Store, runtime: Runtime, rounds: int) -> None:
        self.store = store
        self.runtime = runtime
        self.rounds = rounds
        self.keys: dict[Key, None] = {}
        self.latency: list[Latency] = []
        self.findings: Findings | None = None
        self._run = runtime.new_id()

    def key(self, folder: str, name: str) -> Key:
        """A key for one check; each check uses another folder."""
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


def _conditional_writes(context: DoctorContext) -> str:
    context.findings = probe_conditions(context.store, runtime=context.runtime)
    return f"create and swap are honoured ({context.findings.etag_style} ETags)"


def _create_race(context: DoctorContext) -> str:
    for turn in range(context.rounds):
        key = context.key("create", str(turn))
        creates = [partial(context.store.put, key, encode(n), when=Absent()) for n in range(CREATORS)]
        answers = _answers(context, creates)
        winners = [n for n, error in enumerate(answers) if error is None]
        _expect(len(winners) < 2, f"{len(winners)} of {CREATORS} creates of one name at once were acknowledged")
        # F1: the answer to the winner may be a Conflict; then the bytes that were kept name it.
        kept = decode(context.store.get(key).data, int, what=key)
        _expect(winners in ([], [kept]), "the create that was acknowledged is not the one that was kept")
    return f"{context.rounds} x {CREATORS} creates at once, one winner each"


def _swap_race(context: DoctorContext) -> str:
    key = context.key("swap", "race")
    context.store.put(key, encode([]), when=Absent())
    acknowledged: list[str] = []
    until_s = context.runtime.elapsed_s() + RACE_S
    _answers(context, [partial(_add_marks, context, key, n, until_s, acknowledged) for n in range(SWAPPERS)])
    kept = decode(context.store.get(key).data, list[str], what=key)
    lost = set(acknowledged) - set(kept)
    _expect(acknowledged, f"no swap got through in {RACE_S:.0f} s")
    _expect(not lost, f"{len(lost)} of {len(acknowledged)} acknowledged swaps by {SWAPPERS} writers were lost")
    return f"{many(len(acknowledged), 'swap')} by {SWAPPERS} writers, none lost"


def _add_marks(context: DoctorContext, key: Key, writer: int, until_s: float, acknowledged: list[str]) -> None:
    """Add this writer's marks to the list in `key`, one swap each; stop without an error at `until_s`."""
    marks = [f"{writer}.{n}" for n in range(context.rounds * SWAPS_PER_ROUND)]
    while marks and context.runtime.elapsed_s() < until_s:
        try:
            blob = context.store.get(key)
            kept = decode(blob.data, list[str], what=key)
            # Without a pause, the swaps of a fast store would hardly ever overlap.
            context.runtime.sleep(context.runtime.rng.uniform(0, 0.004))
            if marks[0] not in kept:
                context.store.put(key, encode([*kept, marks[0]]), when=Match(blob.version))
            acknowledged.append(marks.pop(0))
        except (Conflict, OutcomeUnknown):
            pass
        except Unavailable:
            context.runtime.sleep(context.runtime.rng.uniform(0.1, 1.0))


def _answers(context: DoctorContext, calls: Sequence[Callable[[], object]]) -> list[LimpetError | None]:
    """The errors of the calls, made concurrently. An error that no race explains is raised."""
    start_s = context.runtime.elapsed_s() + START_S

    def one(call: Callable[[], object]) -> LimpetError | None:
        context.runtime.sleep(start_s - context.runtime.elapsed_s())
        try:
            call()
        except LimpetError as error:
            return error
        return None

    answers = context.runtime.fan_out(one, calls, at_once=len(calls))
    for error in answers:
        if error is not None and not isinstance(error, Conflict | OutcomeUnknown | Unavailable):
            raise error
    return answers


def _swap_missing(context: DoctorContext) -> str:
    gone = context.key("missing", "gone")
    version = context.store.put(gone, b"1", when=Absent())
    context.store.delete(gone)
    context.store.delete(gone)
    refused = _raises((Conflict, OutcomeUnknown), lambda: context.store.put(gone, b"2", when=Match(version)))
    _expect(refused, "a swap of a deleted object was acknowledged")
    _expect(not context.store.exists(gone), f"{gone} is there, and must not be")
    return "refused, and nothing is created"


def _list_after_write(context: DoctorContext) -> str:
    for n in range(context.rounds * 3):
        key = context.key("write", str(n))
        context.store.put(key, b"{}", when=Absent())
        _expect(key in context.listed(_folder(key)), "a list right after a put does not show the new object")
    return "every put is in the next list"


def _list_after_delete(context: DoctorContext) -> str:
    for n in range(context.rounds * 3):
        key = context.key("delete", str(n))
        context.store.put(key, b"{}")
        context.store.delete(key)
        _expect(key not in context.listed(_folder(key)), "a list right after a delete still shows the object")
    return "no deleted object is in the next list"


def _listing_order(context: DoctorContext) -> str:
    folder = _folder(context.key("order", "folder"))
    keys = [context.use(join(folder, name)) for name in ("b", "a/x", "a", "a-b", "a.b", "a0", "B", "A~", "ab/y")]
    _put_all(context, dict.fromkeys(keys, b"{}"))
    ordered = sorted(keys, key=str.encode)
    _expect(context.listed(folder) == ordered, "a list is not in the byte order of the keys")
    for n, after in enumerate(ordered):
        rest = context.listed(folder, after=after)
        _expect(rest == ordered[n + 1 :], f"a list after {after} does not go on right behind it")
    return "in the byte order of the keys, resumed after each of them"


def _object_and_folder(context: DoctorContext) -> str:
    outer = context.key("nested", "k")
    inner = context.use(join(outer, "x.json"))
    for key, body in ((outer, b"outer"), (inner, b"inner")):  # in turn: SeaweedFS may lose one of two at once
        context.store.put(key, body)
    _expect(context.listed(_folder(outer)) == [outer, inner], "a list does not show both k and k/x")
    _expect(context.listed(outer) == [inner], "a list below k shows k itself")
    dirs = [*context.store.list_dirs(_folder(outer))]
    _expect(dirs == [outer.rpartition("/")[2]], f"the folders beside k are {dirs}")
    context.store.delete(outer)
    _expect(context.store.get(inner).data == b"inner", "deleting k took k/x with it")
    return "k and k/x live side by side"


def _conditional_reads(context: DoctorContext) -> str:
    key = context.key("reads", "one")
    old = context.store.put(key, b"old")
    new = context.store.put(key, b"new", when=Match(old))
    _expect(context.store.get(key, if_match=new).data == b"new", "if_match with the right version gives other bytes")
    _expect(
        context.store.get(key, if_none_match=old).data == b"new", "if_none_match with an old version gives other bytes"
    )
    _expect(_raises(Conflict, lambda: context.store.get(key, if_match=old)), "if_match with an old version is ignored")
    _expect(_raises(NotModified, lambda: context.store.get(key, if_none_match=new)), "if_none_match is ignored")
    return "if_match and if_none_match are honoured"


def _raises(kinds: type[LimpetError] | tuple[type[LimpetError], ...], call: Callable[[], object]) -> bool:
    try:
        call()
    except kinds:
        return True
    return False


def _range_read(context: DoctorContext) -> str:
    key, body = context.key("range", "one"), bytes(range(256)) * 4
    version = context.store.put(key, body)
    for start, stop in ((0, 1), (10, 300), (1000, 5000)):
        blob = context.store.get(key, range=(start, stop), if_match=version)
        _expect(blob.data == body[start:stop], f"the range {start}..{stop} gives other bytes")
        _expect((blob.size, blob.version) == (len(body), version), "a range read has a wrong size or version")
    return "right bytes, size and version"


def _names(context: DoctorContext) -> str:
    return _keep_all(context, [context.key("names", name) for name in USER_NAMES], hint=HINT)


def _odd_names(context: DoctorContext) -> str:
    folder = _folder(context.key("odd", "folder"))
    keys = [context.use(join(folder, name)) for name in ODD_NAMES]
    return _keep_all(context, keys, hint="Limpet encodes names, so this harms only keys that you build yourself")


def _keep_all(context: DoctorContext, keys: list[Key], *, hint: str) -> str:
    _put_all(context, {key: key.encode() for key in keys})
    for key, found in context.store.get_many(keys).items():
        if isinstance(found, LimpetError):
            raise found
        _expect(found.data == key.encode(), f"{key} reads back as another object", hint=hint)
    missing = {*keys}.difference(context.listed(_folder(keys[0])))
    _expect(not missing, f"a list does not show {', '.join(sorted(missing))}", hint=hint)
    return f"{len(keys)} names kept apart and listed as written"


def _put_all(context: DoctorContext, bodies: dict[Key, bytes]) -> None:
    for result in context.store.put_many(Put(key, data) for key, data in bodies.items()).values():
        if isinstance(result, LimpetError):
            raise result


def _large_object(context: DoctorContext) -> str:
    key, body = context.key("large", "one"), context.runtime.rng.randbytes(LARGE_BYTES)
    context.store.put(key, body)
    _expect(context.store.head(key).size == len(body), "a HEAD has a wrong size")
    _expect(context.store.get(key, size_max=LARGE_BYTES).data == body, "other bytes came back")
    return f"{LARGE_BYTES >> 20} MiB written and read back"


def _clock(context: DoctorContext) -> str:
    key = context.key("clock", "one")
    stamps: list[datetime] = []
    skews_s: list[float] = []
    for n in range(context.rounds * 2):
        before = context.runtime.wall()
        context.store.put(key, encode(n))
        middle = before + (context.runtime.wall() - before) / 2
        stamps.append(context.store.head(key).modified)
        skews_s.append((stamps[-1] - middle).total_seconds())
    bound = context.store.now()
    context.store.put(key, b"{}")
    ahead = bound - context.store.head(key).modified
    _expect(ahead <= timedelta(seconds=1), f"a later LastModified was {ahead.total_seconds():.1f} s behind now()")
    skew_s = sorted(skews_s)[len(skews_s) // 2]
    micros = [stamp.microsecond for stamp in stamps]
    unit = (
        "microseconds" if any(micro % 1000 for micro in micros) else "milliseconds" if any(micros) else "whole seconds"
    )
    seen = f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this machine, LastModified in {unit}"
    _expect(abs(skew_s) <= SKEW_S_MAX, seen, hint="set this machine's clock (NTP); locks stay safe meanwhile")
    return seen


def _speed(context: DoctorContext) -> str:
    store, body = context.store, b"x" * 1024
    keys = [context.key("speed", str(n)) for n in range(context.rounds * SAMPLES_PER_ROUND)]
    versions: dict[Key, Version] = {}
    verbs: dict[str, Callable[[Key], object]] = {
        "put": lambda key: versions.update({key: store.put(key, body)}),
        "swap": lambda key: store.put(key, body + b"y", when=Match(versions[key])),
        "head": store.head,
        "get": store.get,
        "list": lambda key: context.listed(_folder(key)),
        "delete": store.delete,
    }
    for verb, call in verbs.items():
        took_ms: list[float] = []
        for key in keys:
            start_s = context.runtime.elapsed_s()
            call(key)
            insort(took_ms, (context.runtime.elapsed_s() - start_s) * 1000)
        p50_ms, p95_ms = (round(took_ms[int(share * (len(took_ms) - 1))], 3) for share in (0.5, 0.95))
        context.latency.append(Latency(verb=verb, calls=len(keys), p50_ms=p50_ms, p95_ms=p95_ms))
    return "p50 " + ", ".join(f"{spent.verb} {spent.p50_ms:.1f} ms" for spent in context.latency)


class Planned(NamedTuple):
    """A check to make; Limpet must not be used where a required one fails."""

    name: str
    required: bool
    work: Callable[[DoctorContext], str]


CHECKS = (
    Planned("conditional writes", True, _conditional_writes),
    Planned("create race", True, _create_race),
    Planned("swap race", True, _swap_race),
    Planned("swap of a missing object", True, _swap_missing),
    Planned("conditional reads", True, _conditional_reads),
    Planned("range read", True, _range_read),
    Planned("large object", True, _large_object),
    Planned("list after write", True, _list_after_write),
    # A deleted object that is still listed reads as Missing, which every reader expects (F22).
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
    """The results of all checks; `ok` if every required check passed."""

    ok: bool
    checks: list[Check]
    latency: list[Latency]
    findings: Findings | None


@contextmanager
def store_to_examine(store: Store, runtime: Runtime) -> Iterator[Store]:
    """The store, or instead of a directory a new folder in it (above it, while it does not exist), which is removed
    afterwards.   Raises: Denied."""
    if not isinstance(store, DirectoryStore):
        yield store
        return
    near = store.root
    while not near.exists():
        near = near.parent
    try:
        # A leading dot: no key of a store is stored under such a name.
        folder = tempfile.mkdtemp(prefix=".limpet-doctor-", dir=near)
    except OSError as error:
        raise Denied(f"cannot write below {near}: {os.strerror(error.errno or 0)}") from error
    try:
        yield DirectoryStore(folder, runtime=runtime)
    finally:
        shutil.rmtree(folder)


def examine(store: Store, *, rounds: int = 3, progress: Callable[[Check], None] = lambda check: None) -> Report:
    """Run all checks; `progress` gets each as it ends.

    Raises: Denied, Unavailable or OutcomeUnknown of the first request; later errors are failed checks.
    Cost: three rounds take some 1,000 requests and 8 MiB each way. Crash: objects below probe/ remain.
    """
    context = DoctorContext(store, system(), rounds)
    checks: list[Check] = []

    def make(name: str, required: bool, work: Callable[[DoctorContext], str]) -> None:
        try:
            checks.append(Check(name=name, ok=True, required=required, detail=work(context)))
        except LimpetError as error:
            checks.append(
                Check(name=name, ok=False, required=required, detail=str(error), hint=error.hint or KEEPS_NOT)
            )
        progress(checks[-1])

    store.put(context.key("first", "first"), b"{}")
    try:
        for name, required, work in CHECKS:
            make(name, required, work)
    finally:
        make("clean-up", False, _clean_up)
    ok = all(check.ok for check in checks if check.required)
    return Report(ok=ok, checks=checks, latency=context.latency, findings=context.findings)


def _clean_up(context: DoctorContext) -> str:
    errors = [error for error in context.store.delete_many(context.keys).values() if error is not None]
    if errors:
        raise errors[0]
    root = next(iter(context.keys)).partition("/")[0]
    back = [key for key in context.listed(root) if key in context.keys]
    still = f"{len(back)} of {len(context.keys)} deleted objects are still there, {''.join(back[:1])} among them"
    _expect(not back, still, hint=f"delete what is left below {root}/ by hand")
    return f"{many(len(context.keys), 'object')} deleted"
