"""`python -m sim SCENARIO --seed N`, and `python -m sim soak --seconds N`."""

from __future__ import annotations

import argparse
import os
import sys
from statistics import median

from sim import SCENARIOS, RunSum, coverage_table, run_seeds, run_until, shrink, trace_lines

SOAK_FIRST_SEED = 1_000_000


def main(argv: list[str] | None = None) -> int:
    """Run one seed, many or a soak; the exit code is 1 when an invariant broke."""
    arguments = _parser().parse_args(argv)
    if arguments.scenario == "soak":
        return _soak(arguments)
    if arguments.seeds:
        total = run_seeds(arguments.scenario, arguments.seed, arguments.seeds, jobs=arguments.jobs)
        _report(arguments.scenario, total)
        return 1 if total.broken else 0
    return _one(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("scenario", choices=[*SCENARIOS, "soak"])
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first one (default 0)")
    parser.add_argument("--seeds", type=int, default=0, help="run so many seeds, and print the sums")
    parser.add_argument("--seconds", type=float, default=60, help="for soak: how long (default 60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--trace", action="store_true", help="print the trace of a run that went well, too")
    parser.add_argument("--no-shrink", action="store_true", help="print a failure with all its faults")
    return parser


def _one(arguments: argparse.Namespace) -> int:
    run = SCENARIOS[arguments.scenario]
    world, violation = run(arguments.seed)
    digest = world.trace_hash()
    if violation is not None and not arguments.no_shrink:
        faults = len(world.faults)
        muted, world, violation = shrink(run, arguments.seed)
        print(f"shrunk from {faults} faults to {len(world.faults)} ({len(muted)} muted)\n")
    if violation is not None or arguments.trace:
        print(*trace_lines(world), sep="\n")
    print(f"trace {digest}")
    if violation is None:
        print(f"seed {arguments.seed} holds: {world.calls} store calls, {len(world.faults)} faults")
        return 0
    print(f"\nBROKEN: {violation}\nagain: python -m sim {arguments.scenario} --seed {arguments.seed}")
    return 1


def _soak(arguments: argparse.Namespace) -> int:
    first = arguments.seed or SOAK_FIRST_SEED
    broken = False
    for scenario in SCENARIOS:
        total = RunSum()
        for total in run_until(scenario, first, arguments.seconds / len(SCENARIOS), jobs=arguments.jobs):
            if sys.stderr.isatty():
                print(f"\r{scenario}: {total.runs} seeds", end="", file=sys.stderr)
        _report(scenario, total)
        broken = broken or bool(total.broken)
    return 1 if broken else 0


def _report(scenario: str, total: RunSum) -> None:
    if not total.runs:
        print(f"{scenario}: no seed was run")
        return
    rate = total.runs / total.busy_s * 60
    print(
        f"\n{scenario}: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.1f} virtual hours; "
        f"median run {median(total.calls):.0f} store calls, {median(total.faults):.0f} faults, "
        f"{median(total.actors):.0f} processes"
    )
    print("faults: " + ", ".join(f"{kind} {count}" for kind, count in total.by_kind.most_common()))
    print(coverage_table(total.coverage))
    for seed, why in sorted(total.broken)[:10]:
        print(f"BROKEN: {why}\n  again: python -m sim {scenario} --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
