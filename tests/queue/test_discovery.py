"""Discovery: list once, claim many, and never trust a listing (F22)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from limpet.kernel.errors import Conflict
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import Always, MemoryStore, Version, When
from limpet.kernel.store.api import Stat
from limpet.queue import BucketQueue
from limpet.queue.discovery import AGE_MAX_S, YOUNG_READS_MAX
from limpet.queue.pages import PAGE, Candidate, CandidatePage, Pages
from limpet.worker import Job, Worker
from support.queue import ROOT, TTL_S, Process, World, held, rounds


def fill(world: World, number: int, *, start: int = 0) -> None:
    """So many tasks that wait, pushed by somebody else."""
    process = world.process()
    for n in range(start, start + number):
        process.queue.push({"n": n})


def lists(process: Process) -> int:
    return process.store.snapshot().requests.get("list", 0)


# ---- list once, claim many ----


def test_one_page_serves_many_claims(world: World) -> None:
    fill(world, 300)
    process = world.process()
    process.take()
    before = lists(process)
    for _ in range(299):
        process.take()
    assert lists(process) == before


def test_a_page_is_too_old_after_a_while(world: World) -> None:
    fill(world, 10)
    process = world.process()
    process.take()
    before = lists(process)
    world.time.sleep(AGE_MAX_S - 1)
    process.take()
    assert lists(process) == before
    world.time.sleep(2)
    process.take()
    assert lists(process) == before + 1


def test_a_short_backlog_is_listed_together_with_what_is_scheduled(world: World) -> None:
    process = world.process()
    process.queue.push({}, delay_s=1000)
    process.queue.claim()
    assert process.cost(process.queue.claim) == {"list": 1}


def test_a_long_backlog_is_drained_completely(world: World) -> None:
    fill(world, 2 * PAGE + 100)
    process = world.process()
    taken = Counter[str]()
    while claim := process.queue.claim():
        (task,) = claim
        taken[task.id] += 1
        task.done()
    assert len(taken) == 2 * PAGE + 100
    assert set(taken.values()) == {1}
    assert [key for key in world.names() if key.startswith("pending/")] == []


def test_two_workers_share_a_backlog_and_spread(world: World) -> None:
    """Claims that are lost to the other are few: the choice widens with each."""
    fill(world, 400)
    one, two = world.process(), world.process()
    for process in (one, two):
        process.queue.discovery.list_page()
    taken = Counter[str]()
    while True:
        claims = [process.queue.claim() for process in (one, two)]
        if not any(claims):
            break
        for claim in claims:
            for task in claim:
                taken[task.id] += 1
                task.done()
    assert len(taken) == 400
    assert set(taken.values()) == {1}
    refused = one.store.snapshot().refused + two.store.snapshot().refused
    assert refused < 200


def test_many_workers_on_one_stale_page(world: World) -> None:
    fill(world, 60)
    workers = [world.process() for _ in range(6)]
    for worker in workers:
        worker.queue.discovery.list_page()
    ran = [id_ for worker in workers for id_ in worker.drain(idle_s=0)]
    assert sorted(Counter(ran).values()) == [1] * 60
    assert all(key.startswith("completed/") for key in world.names())


# ---- hints ----


@pytest.mark.parametrize("delay_s", [0.0, 300.0])
def test_where_seeing_costs_nothing_a_push_wakes_an_idle_worker(world: World, delay_s: float) -> None:
    process = world.process()
    process.store.hints = True
    process.queue.claim(wait_s=1000)
    started_s = world.time.now_s
    world.time.at(500, lambda: world.process().queue.push({}, id="x", delay_s=delay_s))
    before = process.store.snapshot()
    assert held(process.queue.claim(wait_s=5000)).entry == "x"
    waited_s = world.time.now_s - started_s - 500 - delay_s
    assert waited_s < (1 if not delay_s else 40)
    assert (process.store.snapshot() - before).requests["list"] < 50


def test_with_hints_an_idle_worker_asks_no_more_often(world: World) -> None:
    process = world.process()
    process.store.hints = True
    requests = process.cost(lambda: process.queue.claim(wait_s=3600))
    assert sum(requests.values()) <= 200


# ---- listings that lie ----


class Stale(MemoryStore):
    """Listings show what was there when `freeze` was called."""

    shown: list[Stat] | None = None

    def freeze(self) -> None:
        """From now on, show this."""
        self.shown = [*super().list("")]

    def list(self, prefix: str = "", *, after: str | None = None):  # type: ignore[no-untyped-def]
        """See `Store.list`."""
        if self.shown is None:
            return super().list(prefix, after=after)
        return iter(
            [stat for stat in self.shown if stat.key.startswith(prefix + "/") and (not after or stat.key > after)]
        )


@pytest.fixture
def stale(world: World) -> Stale:
    """The world's bucket, whose listings can be frozen."""
    bucket = Stale(world.memory._runtime)
    world.memory = bucket
    return bucket


def test_a_listing_that_shows_what_is_gone_runs_nothing_again(world: World, stale: Stale) -> None:
    one, two = world.process(), world.process()
    one.queue.push({}, id="x")
    one.queue.push({})
    one.queue.push_many(rounds(3))
    stale.freeze()
    assert len(one.drain(idle_s=0)) == 5
    assert two.drain(idle_s=2 * TTL_S) == []
    stale.shown = None
    assert all(key.startswith("completed/") for key in world.names())


def test_a_listing_that_hides_a_lease_gives_no_second_holder(world: World, stale: Stale) -> None:
    one, two = world.process(timeout_s=None), world.process()
    one.queue.push({}, id="x")
    stale.freeze()
    one.take()
    assert not two.queue.claim(wait_s=10 * TTL_S)


def test_a_listing_that_shows_an_old_lease_takes_nothing_from_the_living(world: World, stale: Stale) -> None:
    """The version that two looks saw unchanged is not the one that stands there."""
    one, two = world.process(timeout_s=None), world.process()
    one.queue.push({}, id="x")
    claim = one.take()
    stale.freeze()
    world.time.sleep(TTL_S / 2)
    assert not two.queue.claim(wait_s=20 * TTL_S)
    assert not claim.lost
    assert two.store.snapshot().refused == 0, "it did not even try"


def test_a_listing_that_shows_a_free_lease_that_was_taken(world: World, stale: Stale) -> None:
    one, two = world.process(timeout_s=None), world.process()
    one.queue.push({}, id="x")
    one.take().hand_back()
    stale.freeze()
    claim = one.take()
    assert not two.queue.claim(wait_s=5 * TTL_S)
    assert not claim.lost


def test_a_page_that_ends_between_a_lease_and_its_task(world: World) -> None:
    """Samples may begin anywhere: the claim is refused by the lease that the page did not show."""
    one, two = world.process(timeout_s=None), world.process()
    one.queue.push({}, id="x")
    one.take()
    everything = [*world.memory.list(ROOT)]
    [candidate] = two.queue.discovery.pages.candidates([stat for stat in everything if stat.key.endswith("task.json")])
    assert candidate.lease is None
    assert two.queue._claim(candidate) is None


# ---- young leases ----


def test_of_young_leases_only_a_few_are_read(world: World) -> None:
    """A page of entries that the living work on costs 8 reads, and the next page none."""
    fill(world, 100)
    worker = world.process(timeout_s=None)
    for _ in range(100):
        worker.take()
    looker = world.process()
    looker.queue.claim()
    assert looker.store.snapshot().requests["get"] == YOUNG_READS_MAX
    before = looker.store.snapshot().requests["get"]
    looker.queue.claim()
    assert looker.store.snapshot().requests["get"] <= before + YOUNG_READS_MAX


def test_a_lease_is_read_once_per_version(world: World) -> None:
    process, looker = world.process(), world.process()
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=10_000)
    requests = looker.cost(lambda: looker.queue.claim(wait_s=1000))
    assert requests["get"] == 1


def test_a_freed_entry_is_found_among_many_that_are_held(world: World) -> None:
    """Leases that were read before do not use up the reads of a page."""
    worker = world.process("w", ttl_s=600.0, timeout_s=None)
    for n in range(30):
        worker.queue.push({}, id=f"held{n:02}")
        world.time.sleep(1)
    for _ in range(30):
        worker.take()
    worker.queue.push({}, id="z")
    worker.start()[1].retry(after_s=1)
    looker = world.process(ttl_s=600.0)
    started_s = world.time.now_s
    assert held(looker.queue.claim(wait_s=2000)).entry == "z"
    assert world.time.now_s - started_s < 300


# ---- what does not belong there ----


@pytest.mark.parametrize(
    "key",
    [
        "pending/README",
        "pending/task.json",
        "pending/x/notes.txt",
        "pending/x/deep/task.json",
        "pending/y/deep/lease.json",
        "pending/empty/other.json",
        "other/thing.json",
        "scheduled/README.json",
        "scheduled/20260301T000000Z/no-mark.json",
        "scheduled/20260301T000000Z/@.json",
        "scheduled/sometime/x@y.json",
        "slots/README",
        "completed/README",
        "failed/x~².json",
    ],
)
def test_foreign_files_stop_nobody(world: World, key: str) -> None:
    world.write(key, b"hello")
    process = world.process()
    process.queue.push({}, id="x")
    process.queue.push({}, id="y")
    ids = process.queue.push_many(rounds(2))
    process.queue.push({}, id="later", delay_s=5)
    assert sorted(process.drain(idle_s=60)) == sorted(["x", "y", "later", *ids])
    process.queue.sweep()
    process.queue.stats()
    process.queue.peek()
    process.queue.retry(all=True)
    assert world.read(key) == b"hello"


def test_a_foreign_lease_deep_in_a_folder_costs_nobody_his_lease(world: World) -> None:
    process = world.process(timeout_s=None)
    process.queue.push({}, id="x")
    claim = process.take()
    world.write("pending/!/x/lease.json", b"{}")
    for n in range(1000):
        world.write(f"pending/{n:026d}/task.json", b"{}")
    world.time.sleep(100)
    world.process().queue.sweep()
    assert "pending/x/lease.json" in world.names()
    world.time.sleep(TTL_S)
    assert not claim.lost


def test_a_queue_whose_name_begins_alike_is_left_alone(world: World) -> None:
    world.memory.put(Key("queues/q2/pending/x/task.json"), b"not ours")
    process = world.process()
    process.queue.push({}, id="x")
    assert process.drain() == ["x"]
    assert process.queue.stats().pending == 0
    assert process.queue.purge() == 0
    assert world.memory.get(Key("queues/q2/pending/x/task.json")).data == b"not ours"


# ---- many threads of one process ----


class FarStore(MemoryStore):
    """A bucket whose requests take a few milliseconds, so that the threads of a worker overlap."""

    far = True
    at_once = 32

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        time.sleep(0.003)
        try:
            return super().put(key, data, when=when)
        except Conflict:
            self.calls["refused"] += 1
            raise

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        time.sleep(0.003)
        self.calls["list"] += 1
        return super().sample(prefix, n)


def test_the_threads_of_a_process_share_a_page_and_lose_no_claim_to_each_other() -> None:
    store = FarStore()
    queue = BucketQueue(store, "q", system())
    for n in range(0, 1500, 30):
        queue.push_many([{"n": n + k} for k in range(30)], batch=1)
    ran: list[int] = []
    store.calls.clear()
    Worker([Job(queue, lambda payload: ran.append(payload["n"]))], system(), threads=16, burst=True).run()
    assert sorted(ran) == [*range(1500)]
    assert store.calls["refused"] <= 15  # two listings in a row may show an entry as free that was claimed in between
    assert store.calls["list"] <= 30


def test_a_page_leaves_out_what_another_thread_is_claiming(world: World) -> None:
    fill(world, 3)
    discovery = world.process().queue.discovery
    discovery.list_page()
    claiming = discovery.next()
    assert claiming is not None
    page = discovery.list_page()
    assert page is not None
    assert len(page.candidates) == 2
    discovery.tried(claiming)
    page = discovery.list_page()
    assert page is not None
    assert len(page.candidates) == 3


def test_a_page_that_another_thread_has_listed_is_not_listed_again(world: World) -> None:
    fill(world, 3)
    process = world.process()
    seen = process.queue.discovery.pages.listed
    assert process.queue.discovery.list_page(seen) is not None
    before = lists(process)
    assert process.queue.discovery.list_page(seen) is None
    assert lists(process) == before


def test_a_page_of_what_this_process_has_ended_is_followed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, PAGE + 1)
    process = world.process()
    assert process.take() is not None
    discovery = process.queue.discovery
    listed = 0

    def page(self: Pages) -> CandidatePage:
        nonlocal listed
        listed += 1
        discovery._handed["ours"] = float("inf")
        names = ["ours"] if listed == 1 else ["ours", "theirs"]
        wall = process.runtime.wall()
        return CandidatePage(process.runtime.elapsed_s(), [Candidate(name, False, wall, None) for name in names])

    monkeypatch.setattr(Pages, "_sampled", page)
    discovery._drop_ready()
    process.queue.claim()
    assert listed > 1


def test_a_claim_that_waits_looks_at_once_if_the_change_token_differs(world: World) -> None:
    """Also after claims that did not wait, whose pauses have grown."""
    process = world.process()
    process.store.hints = True
    for _ in range(20):
        assert not process.queue.claim()
    world.process("other").queue.push({})
    began_s = world.time.now_s
    assert process.queue.claim(wait_s=5.0)
    assert world.time.now_s == began_s
