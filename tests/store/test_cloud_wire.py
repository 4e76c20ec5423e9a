"""The cloud store against a server that misbehaves on the wire: what it may claim, and what it may never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from limpet.kernel.cell import PLAIN, Cell
from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import Key, cell_key
from limpet.kernel.runtime import system
from limpet.kernel.store import Absent, Always, Match, Version, When, cloud
from limpet.kernel.store.cloud import CloudStore
from support.servers.misbehaving import ACTS, Misbehaving, misbehaving

K = Key("room/thing.json")
OLD = b"0123456789"
NEW = b"9876543210"

PUT_ACTS = {
    "drop before": OutcomeUnknown,
    "drop after": OutcomeUnknown,
    "hang before": OutcomeUnknown,
    "hang after": OutcomeUnknown,
    "500 before": OutcomeUnknown,
    "500 after": OutcomeUnknown,
    "503 after": OutcomeUnknown,
    "429": OutcomeUnknown,
    "no etag": OutcomeUnknown,
    "409": Conflict,
    "412 after": Conflict,
    "404 bucket": Invalid,
}
OWN_ACTS = ("403", "redirect", "other", "bomb", "huge")
READ_ACTS = [act for act in ACTS if "hang" not in act and "etag" not in act and act not in OWN_ACTS]


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with misbehaving() as server:
        yield server


@pytest.fixture
def store(server: Misbehaving, monkeypatch: pytest.MonkeyPatch) -> CloudStore:
    """A store that is not as patient as usual."""
    monkeypatch.setattr(cloud, "_SMALL_PUT", {**cloud._SMALL_PUT, "timeout": "300ms"})
    monkeypatch.setattr(cloud, "_READ", {**cloud._READ, "timeout": "300ms"})
    return server.store()


def outcome(call: Callable[[], object]) -> object:
    """What a call returns, or the kind of its error, which must have one line and a hint."""
    try:
        return call()
    except LimpetError as error:
        failed = error
    assert len(str(failed).splitlines()) == 1
    assert failed.hint or isinstance(failed, Missing)
    return type(failed)


def test_without_an_act_it_is_an_honest_store(store: CloudStore, server: Misbehaving) -> None:
    server.page = 2
    version = store.put(K, OLD, when=Absent())
    for name in "abcde":
        store.put(Key(f"room/{name}"), b"1")
    assert outcome(lambda: store.put(K, NEW, when=Absent())) is Conflict
    assert outcome(lambda: store.put(K, NEW, when=Match(Version('"other"')))) is Conflict
    assert (store.get(K).data, store.get(K, range=(2, 4)).data) == (OLD, b"23")
    assert [stat.key for stat in store.list("room")] == [*(f"room/{name}" for name in "abcde"), K]
    store.put(K, NEW, when=Match(version))
    store.delete(K)
    assert outcome(lambda: store.get(K)) is Missing


# ---- puts ----


@pytest.mark.parametrize("when", [Always(), Absent(), Match(Version("-"))], ids=["always", "absent", "match"])
@pytest.mark.parametrize("act", PUT_ACTS)
def test_a_put(store: CloudStore, server: Misbehaving, act: str, when: When) -> None:
    """Unknown where it may have landed; never sent twice by the client (F1)."""
    if not isinstance(when, Absent):
        version = store.put(K, OLD)
        when = Match(version) if isinstance(when, Match) else when
    server.requests.clear()
    server.act("PUT", act)
    expected: type[LimpetError] = PUT_ACTS[act]
    if isinstance(when, Always) and expected is Conflict:
        expected = Unavailable
    assert outcome(lambda: store.put(K, NEW, when=when)) is expected
    assert len(server.requests) == 1


@pytest.mark.parametrize("act", ["404 key", "404 bare"])
def test_a_404_to_a_conditional_put_is_no_missing_bucket(store: CloudStore, server: Misbehaving, act: str) -> None:
    version = store.put(K, OLD)
    server.act("PUT", act, act)
    assert outcome(lambda: store.put(K, NEW, when=Match(version))) is Conflict, "the object is gone (F7)"
    assert outcome(lambda: store.put(K, NEW, when=Absent())) is OutcomeUnknown


def test_a_swap_of_what_is_gone_is_a_conflict(store: CloudStore, server: Misbehaving) -> None:
    version = store.put(K, OLD)
    store.delete(K)
    assert outcome(lambda: store.put(K, NEW, when=Match(version))) is Conflict


def test_only_a_connection_that_never_came_about_was_not_sent(
    store: CloudStore, server: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time-out while connecting and a refusal are `Unavailable`; a time-out of the answer is not."""
    server.act("PUT", "hang after")
    assert outcome(lambda: store.put(K, NEW, when=Absent())) is OutcomeUnknown
    assert server.objects == {f"fleet/{K}": NEW}, "and there it is"
    with misbehaving() as gone:
        late = gone.store()
    with pytest.raises(Unavailable, match=rf"{gone.address} cannot be reached: Connection refused"):
        late.put(K, NEW, when=Absent())


@pytest.mark.parametrize("act", [act for act in PUT_ACTS if act != "404 bucket"] + ["404 bare", "other etag"])
def test_a_cell_counts_right_whatever_the_server_does(store: CloudStore, server: Misbehaving, act: str) -> None:
    """Each update is done once, or reported; the count is between the two."""
    cell = Cell(store, cell_key("count"), PLAIN, system())
    done = unknown = 0
    for turn in range(4):
        if turn in (0, 2):
            server.act("PUT", act)
        try:
            cell.update(lambda value: int(str(value or 0)) + 1)
            done += 1
        except OutcomeUnknown:
            unknown += 1
    seen = cell.read()
    assert seen is not None
    assert done <= int(str(seen.value)) <= done + unknown
    assert done >= 2


# ---- reads ----


@pytest.mark.parametrize("act", READ_ACTS)
def test_a_read_is_right_or_an_error(store: CloudStore, server: Misbehaving, act: str) -> None:
    store.put(K, OLD)
    wrong = {Unavailable, Invalid, Corrupt, Unsupported}
    asked: list[tuple[tuple[int, int] | None, bytes]] = [(None, OLD), ((2, 6), OLD[2:6])]
    for part, data in asked:
        server.act("GET", act)
        found = outcome(partial(lambda part: store.get(K, range=part).data, part))
        assert found == data or found in wrong or (act.startswith("404") and found is Missing)
    server.act("HEAD", act)
    found = outcome(lambda: store.head(K).size)
    assert found == len(OLD) or found in wrong or (act.startswith("404") and found is Missing)


def test_a_short_body_is_never_accepted(store: CloudStore, server: Misbehaving) -> None:
    """The client asks again a few times; then it is an error, whole or in part."""
    store.put(K, OLD)
    server.act("GET", *["short"] * 4)
    assert outcome(lambda: store.get(K)) is Unavailable
    assert len([line for line in server.requests if line.startswith("GET")]) > 1
    server.act("GET", *["short"] * 8)
    assert outcome(lambda: store.get(K, range=(2, 8))) is Unavailable


def test_a_range_that_says_more_than_it_holds_is_never_accepted(store: CloudStore, server: Misbehaving) -> None:
    """To the client library the body is whole: its length is what the headers say."""
    store.put(K, OLD)
    server.act("GET", "fewer")
    assert outcome(lambda: store.get(K, range=(2, 6))) is Unavailable
    assert store.get(K, range=(2, 6)).data == OLD[2:6]


def test_a_range_with_other_bytes_is_never_accepted(store: CloudStore, server: Misbehaving) -> None:
    store.put(K, OLD)
    server.act("GET", "lying range")
    assert outcome(lambda: store.get(K, range=(2, 6))) is Unavailable


def test_nobodys_condition_fails_a_plain_read_or_delete(store: CloudStore, server: Misbehaving) -> None:
    store.put(K, OLD)
    server.act("DELETE", "412 after")
    assert outcome(lambda: store.delete(K)) is Unavailable
    server.act("DELETE", "404 bare", "404 key")
    store.delete(K)
    store.delete(K)


# ---- listings ----


@pytest.mark.parametrize("act", [act for act in READ_ACTS if act != "no token"])
@pytest.mark.parametrize("order", ["keys", "folders"])
def test_a_listing_is_right_or_an_error(store: CloudStore, server: Misbehaving, act: str, order: str) -> None:
    """F23: never fewer than there are, on the first page or a later one; never what was not asked for."""
    store.list_order = "keys" if order == "keys" else "folders"
    server.page = 2
    names = [Key(f"room/{name}") for name in "abcde"]
    for name in names:
        store.put(name, b"1")
    for first in (True, False):
        server.act("LIST", *([act] if first else ["long", act]))
        found = outcome(lambda: [stat.key for stat in store.list("room")])
        assert found == names or found in (Unavailable, Invalid, Unsupported)


@pytest.mark.parametrize("order", ["keys", "folders"])
def test_the_mark_of_a_folder_is_no_object_and_hides_none(store: CloudStore, server: Misbehaving, order: str) -> None:
    """Consoles and file browsers put an empty object `folder/` when somebody makes a folder."""
    store.list_order = "keys" if order == "keys" else "folders"
    names = [Key(f"room/{name}") for name in "abc"]
    for name in names:
        store.put(name, b"1")
    server.objects["fleet/room/"] = b""
    assert [stat.key for stat in store.list("room")] == names
    assert sorted(stat.key for stat in store.sample("room", 9)) == names


@pytest.mark.parametrize("prefix", ["", "fleet"])
def test_foreign_keys_in_a_listing_are_not_taken_for_ours(server: Misbehaving, prefix: str) -> None:
    """A compiler or a sweep deletes what it has listed."""
    store = server.store(prefix)
    store.put(K, b"1")
    for call in (
        lambda: [stat.key for stat in store.list("room")],
        lambda: [stat.key for stat in store.sample("room", 9)],
    ):
        server.act("LIST", "foreign")
        found = outcome(call)
        assert found in ([K], Unsupported)
