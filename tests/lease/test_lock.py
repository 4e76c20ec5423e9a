"""How a lock is won, waited for, taken over and broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from lease.world import TTL_S, Process, World, won
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Conflict, Corrupt, Held, Invalid, LeaseLost, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import lock_key
from limpet.kernel.lease import LeaseRecord, Lock, State, VersionWatch
from limpet.kernel.lease.decide import look_interval_s
from limpet.kernel.store import MemoryStore
from support.clock import ManualRuntime
from support.stores import Fault, fails, late, lost_reply, lost_request, own_conflict, refused_409, then

LOOK_S = look_interval_s(TTL_S)
ENDS_S = TTL_S + 1


def held(outcome: object) -> Held:
    assert isinstance(outcome, Held), outcome
    return outcome


def put_record(world: World, **changes: Any) -> None:
    """Rewrite the record of `backup`, as another program might."""
    runtime = ManualRuntime(world.time, "editor")
    cell = Cell(world.memory, lock_key("backup"), struct_codec(LeaseRecord), runtime)
    cell.update(lambda record: msgspec.structs.replace(record, **changes) if record else None)


# ---- taking ----


def test_the_first_taker_gets_token_one(world: World) -> None:
    lease = won(world.process("a").lock().try_acquire())
    assert (lease.token, lease.name, lease.lock, lease.ttl_s) == (1, "backup", "locks/user/backup.lock", TTL_S)
    assert not lease.lost
    record = world.record()
    assert (record.state, record.token, record.worker_id, record.label) == (State.HELD, 1, "a", "host:a")


@pytest.mark.parametrize("look_first", [False, True])
def test_a_held_lock_says_by_whom_and_until_when(world: World, look_first: bool) -> None:
    won(world.process("a").lock().try_acquire())
    taken_at = world.process("x").runtime.wall()
    world.time.sleep(5)
    answer = held(world.process("b").lock(look_first=look_first).try_acquire())
    assert (answer.by, answer.token) == ("host:a", 1)
    assert answer.until == taken_at + timedelta(seconds=ENDS_S)


@pytest.mark.parametrize("look_first", [False, True])
def test_a_free_lock_changes_hands_with_a_higher_token(world: World, look_first: bool) -> None:
    for token, owner in enumerate(["a", "b", "a", "c"], start=1):
        lease = won(world.process(owner).lock(look_first=look_first).try_acquire())
        assert lease.token == token
        assert world.facts() == (State.HELD, token, owner)
        lease.release()
        assert world.facts() == (State.FREE, token, owner)


def test_a_process_does_not_share_its_own_lock_with_itself(world: World) -> None:
    a = world.process("a")
    won(a.lock().try_acquire())
    assert held(a.lock().try_acquire()).by == "host:a"


def test_locks_of_other_names_are_other_locks(world: World) -> None:
    won(world.process("a").lock("one").try_acquire())
    assert won(world.process("b").lock("two").try_acquire()).token == 1


@pytest.mark.parametrize("ttl_s", [0, 0.5, -1, 10**9])
def test_a_ttl_must_make_sense(world: World, ttl_s: float) -> None:
    with pytest.raises(Invalid):
        world.process("a").lock(ttl_s=ttl_s)


def test_a_free_lock_that_is_not_due_is_waited_for(world: World) -> None:
    a, b = world.process("a"), world.process("b")
    won(a.lock().try_acquire()).release()
    put_record(world, not_before=a.runtime.wall() + timedelta(seconds=60))
    assert held(b.lock().try_acquire()).until == a.runtime.wall() + timedelta(seconds=60)
    world.time.sleep(60)
    assert won(b.lock().try_acquire()).token == 2


def test_a_record_that_ended_is_never_taken_again(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    put_record(world, state=State.CANCELLED)
    world.time.sleep(1000)
    with pytest.raises(Invalid, match="cancelled"):
        world.process("b").lock().acquire()


# ---- unclear answers ----


@pytest.mark.parametrize("fault", [lost_reply, own_conflict, lost_request, refused_409])
@pytest.mark.parametrize("used_before", [False, True])
def test_an_unclear_answer_is_settled(world: World, fault: Fault, used_before: bool) -> None:
    a = world.process("a")
    if used_before:
        won(a.lock().try_acquire()).release()
    a.store.puts.append(fault)
    lease = won(a.lock().try_acquire())
    assert world.facts() == (State.HELD, lease.token, "a")
    lease.renew()
    lease.release()


def test_somebody_else_is_faster(world: World) -> None:
    a, b = world.process("a"), world.process("b")
    won(a.lock().try_acquire()).release()
    b.store.puts.append(then(refused_409, lambda: won(a.lock().try_acquire())))
    assert held(b.lock(look_first=True).try_acquire()).token == 2
    assert world.facts() == (State.HELD, 2, "a")


def take_over(world: World, process: Process) -> None:
    lock = process.lock()
    lock.try_acquire()
    world.time.sleep(ENDS_S)
    won(lock.try_acquire())


@pytest.mark.parametrize("fault", [lost_reply, own_conflict])
def test_a_token_that_was_won_and_lost_again_is_held_by_the_other(world: World, fault: Fault) -> None:
    """Counterexample 5: found only in the ring of recent writes, so the lease that it would make is dead."""
    a, b = world.process("a"), world.process("b")
    a.store.puts.append(then(fault, lambda: take_over(world, b)))
    answer = held(a.lock().try_acquire())
    assert (answer.by, answer.token) == ("host:b", 2)


def cut_off(process: Process, fault: Fault, lock: Lock) -> None:
    """The put of a claim meets `fault`, and then nothing can be read: its outcome is unknown."""
    process.store.puts.append(fault)
    process.store.gets.append(fails(Unavailable("cut off")))
    with pytest.raises(OutcomeUnknown):
        lock.try_acquire()


@pytest.mark.parametrize("used_before", [False, True])
def test_a_lock_that_was_won_unknowingly_is_recognised(world: World, used_before: bool) -> None:
    a = world.process("a")
    if used_before:
        won(a.lock().try_acquire()).release()
    lock = a.lock(look_first=used_before)
    if used_before:
        a.store.gets.append(None)
    cut_off(a, lost_reply, lock)
    token = world.record().token
    world.time.sleep(20)
    with a.store.measure() as cost:
        lease = won(lock.try_acquire())
    assert cost.requests == {"get": 1, "put": 1}
    assert lease.token == token
    assert lease.valid_for_s() == TTL_S, "counted from now: when the first answer was lost, nobody renewed"
    lease.renew()


def test_a_lock_that_was_not_won_is_simply_asked_for_again(world: World) -> None:
    a = world.process("a")
    lock = a.lock()
    cut_off(a, lost_request, lock)
    assert won(lock.try_acquire()).token == 1


def test_a_claim_that_lands_late_finds_the_version_gone(world: World) -> None:
    a = world.process("a")
    won(a.lock().try_acquire()).release()
    lock = a.lock()
    pending: list[Callable[[], Any]] = []
    a.store.gets.append(None)
    cut_off(a, late(pending), lock)
    assert won(lock.try_acquire()).token == 2
    with pytest.raises(Conflict):
        pending[0]()


def test_a_claim_that_lands_late_in_the_way_of_the_next_is_recognised(world: World) -> None:
    """The first claim is under way; the second reads the free lock; the first lands; the second is refused."""
    a = world.process("a")
    won(a.lock().try_acquire()).release()
    lock = a.lock()
    pending: list[Callable[[], Any]] = []
    a.store.gets.append(None)
    cut_off(a, late(pending), lock)

    def overtaken(send: Callable[[], Any]) -> Any:
        pending[0]()
        return send()

    a.store.puts.append(overtaken)
    lease = won(lock.try_acquire())
    assert lease.token == 2
    lease.renew()
    assert world.facts() == (State.HELD, 2, "a")


def test_somebody_elses_claim_is_not_taken_for_our_own(world: World) -> None:
    """F2: after an unknown outcome only our own write id counts."""
    a, b = world.process("a"), world.process("b")
    lock = a.lock()
    cut_off(a, lost_request, lock)
    won(b.lock().try_acquire())
    assert held(lock.try_acquire()).by == "host:b"


# ---- taking over ----


@pytest.mark.parametrize(("expired_s", "watched_s"), [(20.0, LOOK_S), (0.0, ENDS_S)])
def test_an_abandoned_lock_is_taken_when_expired_and_watched(world: World, expired_s: float, watched_s: float) -> None:
    """Neither before it was watched for a while, nor before it expires (F14: with a second for LastModified)."""
    won(world.process("a").lock().try_acquire())
    world.time.sleep(expired_s)
    lock = world.process("b").lock()
    held(lock.try_acquire())
    world.time.sleep(watched_s - 0.01)
    held(lock.try_acquire())
    world.time.sleep(0.01)
    assert won(lock.try_acquire()).token == 2
    assert world.facts() == (State.HELD, 2, "b")


def test_one_look_is_never_enough(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    world.time.sleep(100_000)
    assert held(world.process("b").lock().try_acquire())


@pytest.mark.parametrize("wall_offset_s", [-86_400.0, 86_400.0])
def test_a_wrong_wall_clock_takes_nothing_early(world: World, wall_offset_s: float) -> None:
    """F13."""
    lease = won(world.process("a").lock().try_acquire())
    lock = world.process("b", wall_offset_s=wall_offset_s).lock()
    for _ in range(20):
        held(lock.try_acquire())
        world.time.sleep(TTL_S / 3)
        lease.renew()
    lease.release()
    assert won(lock.try_acquire()).token == 2


def test_a_store_clock_that_was_set_back_does_not_keep_a_dead_lock(world: World) -> None:
    store_runtime = world.memory._runtime
    assert isinstance(store_runtime, ManualRuntime)
    store_runtime.wall_offset_s = 86_400.0
    won(world.process("a").lock().try_acquire())
    store_runtime.wall_offset_s = 0.0
    lock = world.process("b").lock()
    held(lock.try_acquire())
    world.time.sleep(ENDS_S)
    assert won(lock.try_acquire()).token == 2


def test_a_renewal_between_two_looks_starts_the_watch_again(world: World) -> None:
    lease = won(world.process("a").lock().try_acquire())
    lock = world.process("b").lock()
    held(lock.try_acquire())
    world.time.sleep(TTL_S - 1)
    lease.renew()
    world.time.sleep(ENDS_S)
    held(lock.try_acquire())
    world.time.sleep(LOOK_S)
    assert won(lock.try_acquire()).token == 2


def test_only_one_contender_takes_over(world: World) -> None:
    """F8: both have watched it, both decide to take it; the swap is on the version seen."""
    won(world.process("a").lock().try_acquire())
    b, c = world.process("b"), world.process("c")
    for process in (b, c):
        held(process.lock().try_acquire())
    world.time.sleep(ENDS_S)
    b.store.puts.append(then(refused_409, lambda: won(c.lock().try_acquire())))
    assert held(b.lock().try_acquire()).by == "host:c"
    assert world.facts() == (State.HELD, 2, "c")


def test_the_deposed_holder_finds_out(world: World) -> None:
    lease = won(world.process("a").lock().try_acquire())
    take_over(world, world.process("b"))
    assert lease.lost
    for act in (lease.check, lease.renew, lease.release):
        with pytest.raises(LeaseLost):
            act()
    assert world.facts() == (State.HELD, 2, "b")


# ---- waiting ----


def test_a_lock_that_is_free_is_not_waited_for(world: World) -> None:
    a = world.process("a")
    assert a.lock().acquire(wait_s=0).token == 1
    assert a.runtime.slept == []


@pytest.mark.parametrize("wait_s", [0.0, 0.1, 3.0, 20.0])
def test_the_wait_ends_when_it_was_said_to(world: World, wait_s: float) -> None:
    lease = won(world.process("a").lock().try_acquire())
    for n in range(10):
        world.time.at(9.0 * n, lease.renew)
    started_s = world.time.now_s
    with pytest.raises(Held):
        world.process("b").lock().acquire(wait_s=wait_s)
    assert world.time.now_s - started_s == pytest.approx(wait_s)


@pytest.mark.parametrize("ours_s", [0.0, -7200.0, 7200.0])
@pytest.mark.parametrize("holders_s", [0.0, -86400.0, 86400.0])
def test_a_short_job_takes_over_from_a_dead_holder_whatever_the_wall_clocks_say(
    world: World, holders_s: float, ours_s: float
) -> None:
    """F3: the dead holder's clock was a day ahead, so its `expires_at` lies in the future. A job started by cron looks
    once, and would otherwise never see the same version twice."""
    won(world.process("a", wall_offset_s=holders_s).lock().try_acquire())
    world.time.sleep(10 * TTL_S)
    started_s = world.time.now_s
    assert world.process("b", wall_offset_s=ours_s).lock().acquire(wait_s=0).token == 2
    assert LOOK_S <= world.time.now_s - started_s <= LOOK_S + 5


def test_whoever_waits_gets_it_soon_after_the_release(world: World) -> None:
    lease = won(world.process("a").lock().try_acquire())
    world.time.at(17, lease.release)
    started_s = world.time.now_s
    b = world.process("b")
    assert b.lock().acquire(wait_s=60).token == 2
    assert 17 <= world.time.now_s - started_s <= 17 + 5
    assert all(0.1 < pause_s <= 5 for pause_s in b.runtime.slept)
    assert len(b.runtime.slept) < 20, "looks become rarer"


@pytest.mark.parametrize("wait_s", [None, 600.0])
def test_whoever_waits_takes_over_from_the_dead(world: World, wait_s: float | None) -> None:
    won(world.process("a").lock().try_acquire())
    started_s = world.time.now_s
    assert world.process("b").lock().acquire(wait_s).token == 2
    assert ENDS_S <= world.time.now_s - started_s <= ENDS_S + 5


def test_a_short_job_takes_over_from_the_long_dead_whatever_its_ttl(world: World) -> None:
    won(world.process("a").lock(ttl_s=300).try_acquire())
    world.time.sleep(3600)
    assert world.process("b").lock(ttl_s=10).acquire(wait_s=0).token == 2


def test_a_short_job_does_not_wait_for_the_living(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    b = world.process("b")
    with pytest.raises(Held):
        b.lock().acquire(wait_s=0)
    assert b.runtime.slept == []


# ---- looking and breaking ----


def test_peek_shows_the_record_as_it_stands(world: World) -> None:
    lock = world.process("a").lock()
    assert lock.peek() is None
    won(lock.try_acquire())
    record = lock.peek()
    assert record is not None
    assert (record.state, record.token) == (State.HELD, 1)


def test_a_broken_lock_is_free_and_its_tokens_go_on(world: World) -> None:
    """F10."""
    lease = won(world.process("a").lock().try_acquire())
    broken = world.process("admin").lock().break_()
    assert (broken.state, broken.token) == (State.FREE, 1)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.lost
    assert won(world.process("b").lock().try_acquire()).token == 2


def test_a_lock_that_never_was_cannot_be_broken(world: World) -> None:
    with pytest.raises(Missing, match="no lock 'backup'"):
        world.process("a").lock().break_()


def test_breaking_is_decided_on_what_stands_there(world: World) -> None:
    """The holder renews between the look and the swap: broken all the same, and the holder finds out."""
    lease = won(world.process("a").lock().try_acquire())
    admin = world.process("admin")
    admin.store.puts.append(then(refused_409, lease.renew))
    admin.lock().break_()
    assert world.facts() == (State.FREE, 1, "a")
    with pytest.raises(LeaseLost):
        lease.renew()


SPOILT = {
    "token above the limit": lambda fields: fields | {"token": (1 << 53) - 1},
    "last token": lambda fields: fields | {"token": 1 << 50},
    "no zone": lambda fields: fields | {"expires_at": "2026-11-17T12:00:00"},
    "last seq": lambda fields: fields | {"seq": (1 << 53) - 1},
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=[*SPOILT])
def test_a_lock_that_nobody_can_take_is_one_error_with_a_way_out(spoil: Callable[[Any], Any]) -> None:
    """A token of 2^53 - 1 was taken once, and what was written then could never be read again."""
    store, runtime = MemoryStore(ManualRuntime()), ManualRuntime(owner="a")
    key = lock_key("backup")
    lock = Lock(store, key, "backup", 60.0, runtime, VersionWatch(runtime))
    won(lock.try_acquire()).release()
    damaged = json.dumps(spoil(json.loads(store.get(key).data))).encode()
    store.put(key, damaged)
    for _ in range(2):
        with pytest.raises(Corrupt) as refused:
            lock.try_acquire()
        assert "lock break NAME --force" in refused.value.hint
        assert store.get(key).data == damaged
    freed = lock.break_(force=True)
    assert (freed.state, freed.token) == (State.FREE, int(runtime.wall().timestamp() * 1000))
    lease = won(lock.try_acquire())
    assert lease.token == freed.token + 1
    lease.renew()
    lease.release()
    assert lock.break_(force=True).token == lease.token, "one that can be read keeps its token"
    store.put(key, b"garbage")
    assert lock.break_(force=True).state is State.FREE


def test_an_attempt_at_its_limit_does_not_spoil_a_lock(world: World) -> None:
    lock = world.process("a").lock()
    won(lock.try_acquire()).release()
    put_record(world, attempt=1 << 50)
    won(lock.try_acquire()).release()
    assert won(lock.try_acquire()).token == 3


HOSTILE = [("ttl_s", b"1e300"), ("ttl_s", b"-1"), ("token", b"9" * 4300)]
HOSTILE += [("expires_at", b'"2026-01-02T03:04:05"'), ("expires_at", b'"0001-01-01T00:00:00+23:59"')]


@pytest.mark.parametrize(("field", "value"), HOSTILE)
def test_a_hostile_record_is_corrupt_for_whoever_asks(world: World, field: str, value: bytes) -> None:
    won(world.process("a").lock().try_acquire())
    key = lock_key("backup")
    data = world.memory.get(key).data
    spoilt, count = re.subn(rb'"%s":("[^"]*"|[^,}]*)' % field.encode(), b'"%s":%s' % (field.encode(), value), data)
    assert count == 1
    world.memory.put(key, spoilt)
    lock = world.process("b").lock()
    for act in (lock.try_acquire, lambda: lock.acquire(wait_s=600.0), lock.peek):
        with pytest.raises(Corrupt):
            act()
    assert won(world.process("b").lock("another").try_acquire()).token == 1
