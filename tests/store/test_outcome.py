"""What a conditional put really did: every unclear answer is settled by reading back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limpet.kernel.errors import Denied, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Always, Blob, Match, Version, When
from limpet.kernel.store.outcome import Resolution, Verdict, put_bytes, put_resolved
from limpet.kernel.waiting import SENDS_MAX
from support.clock import ManualRuntime
from support.stores import (
    Fault,
    ScriptedStore,
    fails,
    late,
    lost_reply,
    lost_request,
    own_conflict,
    refused_409,
    then,
    unavailable,
)

K = Key("a")
MINE, OTHER = b"mine", b"other"
Judge = Callable[[Blob | None], Verdict]


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore(ManualRuntime())


def mine_or_base(found: Blob | None) -> Verdict:
    if found is None:
        return Verdict.BASE
    return Verdict.WON if found.data == MINE else Verdict.LOST


def settle(store: ScriptedStore, judge: Judge = mine_or_base, when: When = Absent()) -> Resolution:
    return put_resolved(store, store._runtime, K, MINE, when, judge)


def spent(store: ScriptedStore) -> dict[str, int]:
    return {**store.snapshot().requests, "put": len(store.sent)}


def test_a_clear_answer_is_believed(store: ScriptedStore) -> None:
    settled = settle(store)
    assert settled == Resolution(Verdict.WON, store.head(K).version, None)
    assert spent(store) == {"put": 1, "head": 1}


@pytest.mark.parametrize("fault", [lost_reply, own_conflict])
def test_an_unclear_answer_to_a_write_that_landed_is_won(store: ScriptedStore, fault: Fault) -> None:
    """F1: also when the answer is 412, from a copy of the very same request."""
    store.puts.append(fault)
    settled = settle(store)
    assert settled.verdict is Verdict.WON
    assert settled.found is not None
    assert settled.version == settled.found.version == store.head(K).version
    assert spent(store)["put"] == 1
    assert spent(store)["get"] == 1


@pytest.mark.parametrize("fault", [lost_request, refused_409])
def test_what_did_not_land_is_sent_again_with_the_same_bytes(store: ScriptedStore, fault: Fault) -> None:
    """F3, F5, F6."""
    store.puts.extend([fault, fault])
    assert settle(store).verdict is Verdict.WON
    assert store.sent == [(MINE, Absent())] * 3
    runtime = store._runtime
    assert isinstance(runtime, ManualRuntime)
    assert len(runtime.slept) == 2
    assert 0.05 <= runtime.slept[0] <= 0.1 <= runtime.slept[1] <= 0.2


def test_the_wait_before_a_resend_is_at_least_half_of_its_longest() -> None:
    runtime = ManualRuntime()
    for _ in range(40):
        store = ScriptedStore(runtime)
        store.puts.append(lost_request)
        assert settle(store).verdict is Verdict.WON
    assert len(runtime.slept) == 40
    assert all(0.05 <= wait_s <= 0.1 for wait_s in runtime.slept)


@pytest.mark.parametrize("fault", [lost_request, refused_409])
def test_three_sends_and_still_the_base_is_unknown(store: ScriptedStore, fault: Fault) -> None:
    store.puts.extend([fault] * SENDS_MAX)
    with pytest.raises(OutcomeUnknown):
        settle(store)
    assert spent(store) == {"put": 3, "get": 3}
    runtime = store._runtime
    assert isinstance(runtime, ManualRuntime)
    assert len(runtime.slept) == 2, "none behind the last send"


@pytest.mark.parametrize("fault", [lost_request, lost_reply, refused_409])
@pytest.mark.parametrize("error", [Unavailable("busy"), Denied("no"), OutcomeUnknown("cut off")], ids=repr)
def test_a_read_back_that_fails_leaves_it_unknown(store: ScriptedStore, fault: Fault, error: LimpetError) -> None:
    store.puts.append(fault)
    store.gets.append(fails(error))
    with pytest.raises(OutcomeUnknown):
        settle(store)


@pytest.mark.parametrize("kind", [Unavailable, Denied])
def test_a_definite_refusal_of_the_first_send_is_passed_on(store: ScriptedStore, kind: type[LimpetError]) -> None:
    def refuse(send: Callable[[], Version]) -> Version:
        raise kind("no")

    store.puts.append(refuse)
    with pytest.raises(kind):
        settle(store)
    assert spent(store) == {"put": 1}


def test_a_refusal_of_a_resend_says_nothing_of_the_first(store: ScriptedStore) -> None:
    """Send 1 is under way; send 2 is refused as too busy; meanwhile send 1 has landed: won, not Unavailable."""
    pending: list[Callable[[], Version]] = []
    store.puts.extend([late(pending), then(unavailable, lambda: pending[0]())])
    assert settle(store).verdict is Verdict.WON


def test_a_refused_resend_of_what_never_landed_stays_unknown(store: ScriptedStore) -> None:
    store.puts.extend([lost_request, unavailable, unavailable])
    with pytest.raises(OutcomeUnknown):
        settle(store)


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.REPLACED, Verdict.UNKNOWN])
def test_any_other_verdict_ends_it_without_a_version(store: ScriptedStore, verdict: Verdict) -> None:
    store.others.put(K, OTHER)
    settled = settle(store, lambda _: verdict)
    assert (settled.verdict, settled.version) == (verdict, None)
    assert settled.found is not None
    assert settled.found.data == OTHER
    assert spent(store) == {"put": 1, "get": 1}


def test_a_refusal_is_final_where_no_copy_of_the_put_can_travel(store: ScriptedStore) -> None:
    """B1: on a directory and in memory the put was compared and refused, so it did not land."""
    store.others.put(K, OTHER)
    store.conflict_is_final = True
    assert settle(store, lambda _: Verdict.UNKNOWN).verdict is Verdict.LOST


@pytest.mark.parametrize("first", [lost_reply, lost_request, refused_409])
@pytest.mark.parametrize("second", [refused_409, unavailable])
def test_a_refusal_after_an_unclear_send_is_not_final(store: ScriptedStore, first: Fault, second: Fault) -> None:
    """The resend was refused, and the first send may be why."""
    store.conflict_is_final = True
    store.puts.extend([first, second])
    looks = iter([Verdict.BASE, Verdict.UNKNOWN])
    store.others.put(Key("other"), OTHER)
    store.gets.append(lambda: store.others.put(K, OTHER))
    assert settle(store, lambda _: next(looks)).verdict is Verdict.UNKNOWN


def test_a_final_refusal_of_what_is_gone_stays_unknown(store: ScriptedStore) -> None:
    store.conflict_is_final = True
    store.puts.append(refused_409)
    assert settle(store, lambda _: Verdict.UNKNOWN).verdict is Verdict.UNKNOWN


# ---- put_bytes ----


def put(store: ScriptedStore, when: When, *, deletable: bool = False) -> Version:
    return put_bytes(store, store._runtime, K, MINE, when, deletable=deletable)


@pytest.mark.parametrize("fault", [None, lost_reply, own_conflict, lost_request, refused_409])
@pytest.mark.parametrize("is_swap", [False, True])
def test_bytes_are_created_and_swapped(store: ScriptedStore, fault: Fault | None, is_swap: bool) -> None:
    when = Match(store.others.put(K, OTHER)) if is_swap else Absent()
    store.puts.append(fault)
    assert put(store, when) == store.head(K).version
    assert store.get(K).data == MINE


def test_identical_bytes_of_somebody_else_are_the_same_write(store: ScriptedStore) -> None:
    """F2's one exception: a shard with these bytes is the same merge."""
    version = store.others.put(K, MINE)
    assert put(store, Absent()) == version
    assert put(store, Match(Version("old"))) == version


def test_other_bytes_leave_it_unknown_and_untouched(store: ScriptedStore) -> None:
    """Ours may have been there before them; nothing is cleaned up (F4)."""
    store.others.put(K, OTHER)
    for when in (Absent(), Match(Version("old"))):
        with pytest.raises(OutcomeUnknown, match=r"the object has other bytes|more than the 4"):
            put(store, when)
    assert store.get(K).data == OTHER
    assert "delete" not in spent(store)


def test_other_bytes_of_the_same_length_are_other_bytes(store: ScriptedStore) -> None:
    store.others.put(K, MINE[::-1])
    assert MINE[::-1] != MINE
    for when in (Absent(), Match(Version("old"))):
        with pytest.raises(OutcomeUnknown, match="the object has other bytes"):
            put(store, when)
    assert store.get(K).data == MINE[::-1]


def test_a_swap_of_what_is_gone_is_unknown(store: ScriptedStore) -> None:
    with pytest.raises(OutcomeUnknown):
        put(store, Match(Version("old")))
    assert spent(store) == {"put": 1, "get": 1}


def test_absent_is_the_base_unless_others_delete(store: ScriptedStore) -> None:
    store.puts.append(refused_409)
    assert put_bytes(store, store._runtime, K, MINE, Absent()) == store.head(K).version
    assert spent(store)["put"] == 2


def test_absent_proves_nothing_where_others_delete(store: ScriptedStore) -> None:
    """Counterexample 3: created, then removed by others: to send it again would bring it back."""
    store.puts.append(then(lost_reply, lambda: store.others.delete(K)))
    with pytest.raises(OutcomeUnknown):
        put(store, Absent(), deletable=True)
    assert spent(store) == {"put": 1, "get": 1}


def test_an_unconditional_put_is_settled_by_its_bytes(store: ScriptedStore) -> None:
    store.puts.append(lost_reply)
    assert put(store, Always()) == store.head(K).version
