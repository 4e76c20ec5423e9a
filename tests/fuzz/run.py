"""Runs the fuzz: `python tests/fuzz/run.py --seconds 60`, or one case: `python tests/fuzz/run.py KIND MUTATION`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.kinds import KINDS, RARELY, Consumer, Kind
from fuzz.mutate import HUGE, Mutation, drawn_from, mutations_of
from fuzz.world import Bench, Exceeded, Stopped, guarded
from limpet.kernel.keys import Key

__all__ = ["SEED", "TOTAL", "Failure", "beside", "cases", "rotated", "run_case", "run_names"]

SEED = int(os.environ.get("LIMPET_FUZZ_SEED", "12"))
TOTAL = 2000
"""Mutations in `make test`, over all kinds."""
NO_HUGE = ("shard", "pack", "single", "metadata", "table-data")
"""Kinds that are large in earnest, or whose readers read ranges."""


HOSTILE = (
    *("", "..", ".", "\x1b]0;owned\x07", "a\nb", "\x00", "\u202eevil", " ", "a\\b", "*"),
    *("%", "%zz", "%2e%2e", "%1b%5d0", "%ff", "x" * 900, "~"),
    *(".json", ".lock", "x.json", "x.lock", "x.usv", "x.parquet", "0.json", "0.usv", "00.usv", "-1.jsonl"),
    *("9" * 400 + ".jsonl", "9999999999.jsonl", "z" * 26 + ".json", "z" * 26 + "-9999999.json"),
    *("../x.json", "a//b.json", "x/task.json", "x/tasks.jsonl", "x/lease.json", "%1b/task.json"),
    "99990101T000000Z/x/y.json",
)
"""Names beside those of good objects: some cannot be typed, some look like ours."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a consumer did with a damaged object, and how to see it again."""

    kind: str
    mutation: str
    consumer: str
    error: BaseException

    @property
    def group(self) -> str:
        """Failures with one cause have about the same group: the kind of error, and the innermost line of ours."""
        frames = [
            f"{frame.filename.partition('/src/limpet/')[2]}:{frame.name}"
            for frame in traceback.extract_tb(self.error.__traceback__)
            if "/src/limpet/" in frame.filename
        ]
        where = frames[-1] if frames and not isinstance(self.error, AssertionError) else ""
        return f"{type(self.error).__name__} {where}".strip()

    def __str__(self) -> str:
        said = (str(self.error).splitlines() or [""])[0][:160]
        return (
            f"{self.kind}, {self.mutation!r}, {self.consumer}: {self.group}: {said}\n"
            f"  python tests/fuzz/run.py {self.kind} {shlex.quote(self.mutation)} --consumer {self.consumer}"
        )


@cache
def _all(name: str, seed: int) -> tuple[list[Mutation], list[Mutation]]:
    kind = KINDS[name]
    fixed, drawn = mutations_of(kind.form, kind.fleet().data(kind.key(), kind.place), Random(f"{seed} {name}"))
    return [each for each in fixed if each.name != HUGE or name not in NO_HUGE], drawn


def cases(kind: Kind, number: int, seed: int) -> Iterator[Mutation]:
    """`number` mutations of a kind: those that every object gets, and others that the seed draws."""
    fixed, drawn = _all(kind.name, seed)
    yield from fixed[:number]
    yield from drawn_from(drawn, max(0, number - len(fixed)), Random(seed))


def named(kind: Kind, name: str) -> Mutation:
    """The mutation of that name."""
    if name.startswith("flip:"):
        from fuzz.mutate import flip

        return flip(int(name.removeprefix("flip:")))
    fixed, drawn = _all(kind.name, 0)
    return next(each for each in (*fixed, *drawn) if each.name == name)


def rotated(kind: Kind, mutation: Mutation, n: int) -> list[Consumer]:
    """The first consumer, which does the work of the kind, and one of the others in turn; a huge object goes to all.

    A consumer in `RARELY` lets some of its turns pass.
    """
    first, *others = kind.consumers
    if mutation.name == HUGE:
        return [*kind.consumers]
    turn, at = divmod(n, len(others) or 1)
    return [first, *(each for each in others[at : at + 1] if turn % RARELY.get(each, 1) == 0)]


def run_case(kind: Kind, mutation: Mutation, consumers: list[Consumer] | None = None) -> list[Failure]:
    """Damage the object, and let everybody read it."""
    failures = []
    for consumer in consumers or kind.consumers:
        bench = Bench(kind.fleet())
        bench.key, bench.place = kind.key(), kind.place
        store, key = bench.places[kind.place], Key(kind.key())
        data = mutation.apply(store.get(key).data)
        if mutation.signed and kind.resign is not None:
            data = kind.resign(store, key, data)
        modified = store.head(key).modified
        store.put(key, data)
        store.date_back(key, modified)
        if mutation.name == HUGE:
            store.huge.add(key)
        try:
            with guarded(), bench:
                consumer(bench)
                if bench.missing:
                    raise Stopped("; ".join(bench.missing))
        except (Exception, Exceeded) as error:  # noqa: BLE001  whatever comes out is what this looks for
            failures.append(Failure(kind.name, mutation.name, consumer.__name__, error))
    return failures


def beside(kind: Kind) -> dict[str, str]:
    """Keys that Limpet never wrote, in every folder of the fleet of a kind, and an object of that folder for each."""
    names: dict[str, str] = {}
    for key in kind.fleet().places[kind.place]:
        folder, _, good = key.rpartition("/")
        if folder:
            names |= {
                f"{folder}/{name}": key for name in (*HOSTILE, f"{good}.bak", f"%20{good}", f"{good}/x", good.upper())
            }
    return {name: key for name, key in names.items() if name not in kind.fleet().places[kind.place]}


def run_names(kind: Kind, consumer: Consumer, names: Mapping[str, str], data: bytes | None) -> BaseException | None:
    """Put objects under such names, copies of good ones or with other bytes, and let a consumer work; its failure."""
    bench = Bench(kind.fleet())
    bench.key, bench.place = "", kind.place
    store = bench.places[kind.place]
    for name, good in names.items():
        store.place(name, Key(good), data)
    try:
        with guarded(), bench:
            consumer(bench)
            if bench.missing:
                raise Stopped("; ".join(bench.missing))
    except (Exception, Exceeded) as error:  # noqa: BLE001  whatever comes out is what this looks for
        return error
    return None


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", help="one kind; without it, all")
    parser.add_argument("mutation", nargs="?", help="one mutation, by its name")
    parser.add_argument("--consumer", help="only this one")
    parser.add_argument("--room", help="only kinds of this room")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--number", type=int, default=60, help="mutations of each kind in a round")
    parser.add_argument("--seconds", type=float, default=0.0, help="go on with the next seed until so long has passed")
    parser.add_argument("--each", type=int, default=3, help="how many failures of one cause to show")
    options = parser.parse_args()
    kinds = [KINDS[options.kind]] if options.kind else [*KINDS.values()]
    kinds = [kind for kind in kinds if options.room in (None, kind.room)]
    began, seed, count = time.monotonic(), options.seed, 0
    causes: Counter[str] = Counter()
    while True:
        for kind in kinds:
            todo = [named(kind, options.mutation)] if options.mutation else cases(kind, options.number, seed)
            chosen = [each for each in kind.consumers if options.consumer in (None, each.__name__)]
            for mutation in todo:
                count += 1
                for failure in run_case(kind, mutation, chosen):
                    cause = f"{kind.room} {failure.group}"
                    causes[cause] += 1
                    if options.mutation:
                        traceback.print_exception(failure.error)
                    if causes[cause] <= options.each:
                        print(failure, flush=True)
        seed += 1
        if time.monotonic() - began >= options.seconds:
            break
    print(f"{count} mutations in {time.monotonic() - began:.0f} s, seeds {options.seed} to {seed - 1}")
    for cause, times in causes.most_common():
        print(f"{times:6} {cause}")
    return 1 if causes else 0


if __name__ == "__main__":
    sys.exit(main())
