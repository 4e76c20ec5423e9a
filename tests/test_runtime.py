"""Ids, clocks, threads and forks of the real runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.runtime import FAN_OUT_MAX, POOL_MAX, SystemRuntime, system, ulid
from support.clock import steady

MS = st.integers(0, 2**48 - 1)
CHANCE = st.integers(0, 2**80 - 1)


@steady
@given(MS, CHANCE, MS, CHANCE)
def test_ulids_sort_by_time_then_chance(ms: int, chance: int, other_ms: int, other_chance: int) -> None:
    one, other = ulid(ms, chance), ulid(other_ms, other_chance)
    assert len(one) == 26
    assert (one < other) == ((ms, chance) < (other_ms, other_chance))


@pytest.mark.parametrize(
    ("ms", "chance", "text"),
    [(0, 0, "0" * 26), (2**48 - 1, 2**80 - 1, "7" + "z" * 25), (1469918176385, 1, "01aryz6s41" + "0" * 15 + "1")],
)
def test_known_ulids(ms: int, chance: int, text: str) -> None:
    assert ulid(ms, chance) == text


def test_ids_are_unique_across_threads() -> None:
    runtime = SystemRuntime()
    made: list[str] = []

    def make() -> None:
        made.extend(runtime.new_id() for _ in range(500))

    workers = [runtime.spawn(make, name="ids") for _ in range(8)]
    for worker in workers:
        worker.join()
    assert len(set(made)) == 4000


def test_there_is_one_system_runtime() -> None:
    assert system() is system()
    assert SystemRuntime().owner != system().owner


def test_the_rising_clock_counts_time_asleep() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= system().elapsed_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_wall_clock_is_in_utc() -> None:
    assert system().wall().tzinfo is UTC
    assert isinstance(system().wall(), datetime)


def test_a_negative_sleep_is_no_sleep() -> None:
    system().sleep(-1.0)


def test_a_label_names_the_process() -> None:
    assert system().label.endswith(f":{os.getpid()}")


def test_a_flag_wakes_whoever_waits() -> None:
    runtime = SystemRuntime()
    flag = runtime.flag()
    assert not flag.wait(0)
    worker = runtime.spawn(flag.set, name="setter")
    assert flag.wait(30)
    worker.join()
    assert flag.is_set()


def test_spawned_threads_do_not_keep_the_process_alive() -> None:
    code = (
        "from limpet.kernel.runtime import system as s; r = s(); r.spawn(lambda: r.sleep(600), name='x'); print('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


# ---- fan-out ----


def test_results_come_in_the_order_of_the_items() -> None:
    runtime = SystemRuntime()
    assert runtime.fan_out(lambda n: n * n, range(200)) == [n * n for n in range(200)]
    assert runtime.fan_out(lambda n: n, []) == []


@pytest.mark.parametrize("at_once", [2, 4, FAN_OUT_MAX, 1000])
def test_never_more_than_the_bound_at_once_and_as_many_as_that(at_once: int) -> None:
    bound = min(at_once, POOL_MAX)
    together = threading.Barrier(bound)
    running, most = 0, 0
    mutex = threading.Lock()

    def call(_: int) -> None:
        nonlocal running, most
        with mutex:
            running += 1
            most = max(most, running)
        together.wait(30)  # passes only when `bound` calls run at one time
        with mutex:
            running -= 1

    SystemRuntime().fan_out(call, range(bound * 3), at_once=at_once)
    assert most == bound


def test_one_at_once_runs_in_the_callers_thread() -> None:
    runtime = SystemRuntime()
    here = threading.get_ident()
    assert runtime.fan_out(lambda _: threading.get_ident(), range(3), at_once=1) == [here] * 3
    assert runtime.fan_out(lambda _: threading.get_ident(), range(1)) == [here]


NESTED = """
import threading
from limpet.kernel.runtime import FAN_OUT_MAX, SystemRuntime
runtime = SystemRuntime()
together = threading.Barrier(FAN_OUT_MAX)
def outer(n):
    together.wait(30)  # every thread of the pool is busy with an outer call
    return sum(runtime.fan_out(lambda m: n * m, range(4)))
print(runtime.fan_out(outer, range(FAN_OUT_MAX)) == [6 * n for n in range(FAN_OUT_MAX)])
"""


def test_a_fan_out_inside_a_fan_out_does_not_wait_for_itself() -> None:
    """In a process of its own: one that waits for itself never ends."""
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


# ---- forks ----

FORK = """
import os, json
from limpet.kernel.runtime import system
r = system()
r.fan_out(lambda n: n, range(100))
def facts():
    return [r.owner, r.label, r.new_id()[10:], r.rng.random(), r.fan_out(lambda n: n * 2, range(50))[-1]]
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(write, json.dumps(facts()).encode())
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps([facts(), json.loads(os.read(read, 9999))]))
"""


def test_a_forked_child_is_somebody_else_and_its_threads_work() -> None:
    """F17: an owner is a process start, not a pid."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    parent, child = json.loads(done.stdout)
    assert [one == other for one, other in zip(parent, child, strict=True)] == [False, False, False, False, True]
