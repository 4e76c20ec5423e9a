"""`limpet lock ls | show | break`, and `limpet upgrade`: what they say, refuse and change."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import limpet
from cli.harness import Here, answered, limpet_command
from limpet.kernel.keys import Key
from limpet.kernel.store import DirectoryStore

READERS = [("lock", "ls"), ("lock", "show", "x")]
ON_A_FLEET = [*READERS, ("lock", "break", "x", "--yes"), ("upgrade",)]


def _everything() -> dict[str, bytes]:
    store = DirectoryStore("fleet")
    return {stat.key: store.get(stat.key).data for stat in store.list()}


def _rewrite_fleet(change: Callable[[dict[str, Any]], object]) -> None:
    store, key = DirectoryStore("fleet"), Key("limpet.json")
    fields = json.loads(store.get(key).data)
    change(fields)
    store.put(key, json.dumps(fields).encode())


def test_ls_lists_free_and_held_locks(here: Here) -> None:
    fleet = limpet.open("fleet")
    with fleet.lock("a [b] c").hold(wait_s=0):
        pass
    with fleet.lock("nightly", ttl_s=30).hold(wait_s=0):
        shown = here("lock", "ls", "-u", "fleet")
        listed = here("lock", "ls", "-u", "fleet", "--json")
    assert (shown.code, shown.err) == (0, "")
    title, free, held, *_, note = shown.out.splitlines()
    assert title.split() == ["lock", "state", "holder", "token", "last", "heartbeat", "ttl"]
    cells = free.split("\t")
    assert (cells[:4], cells[5]) == (["a [b] c", "free", "-", "1"], "60 s")
    assert held.split()[:3] == ["nightly", "held", f"{os.uname().nodename}:{os.getpid()}"]
    assert "by the store's clock" in note
    facts = json.loads(listed.out)
    assert [(each["name"], each["state"], each["token"], each["ttl_s"]) for each in facts] == [
        ("a [b] c", "free", 1, 60.0),
        ("nightly", "held", 1, 30.0),
    ]


def test_ls_of_a_fleet_without_locks(here: Here) -> None:
    limpet.open("fleet").check()
    assert here("lock", "ls", "-u", "fleet").out == "no lock was ever used at fleet\n"
    assert json.loads(here("lock", "ls", "-u", "fleet", "--json").out) == []


def test_show_tells_who_holds_it(here: Here) -> None:
    with limpet.open("fleet").lock("x", ttl_s=90).hold(wait_s=0):
        shown = here("lock", "show", "x", "-u", "fleet").out
        facts = json.loads(here("lock", "show", "x", "-u", "fleet", "--json").out)
    rows = dict(line.split("\t") for line in shown.splitlines())
    assert [*rows] == ["lock", "state", "holder", "token", "taken", "last heartbeat", "ttl", "key"]
    assert (rows["state"], rows["ttl"]) == ("held", "90 s")
    assert rows["token"] == "1  (the next holder gets 2)"
    assert "by the store's clock" in rows["last heartbeat"]
    assert (facts["holder"], facts["key"]) == (f"{os.uname().nodename}:{os.getpid()}", "locks/user/x.lock")


@pytest.mark.parametrize("command", [("lock", "show", "y"), ("lock", "break", "y", "--yes")])
def test_a_lock_that_never_was(here: Here, command: tuple[str, ...]) -> None:
    limpet.open("fleet").check()
    done = here(*command, "-u", "fleet")
    assert (done.code, done.out) == (1, "")
    assert done.err == "limpet: there is no lock 'y'\nhint: `limpet lock ls` shows those there are\n"


def test_reading_changes_nothing(here: Here) -> None:
    with limpet.open("fleet").lock("x").hold(wait_s=0):
        pass
    before = _everything()
    assert [here(*command, "-u", "fleet").code for command in READERS] == [0, 0]
    assert _everything() == before


@pytest.mark.parametrize("command", ON_A_FLEET, ids=" ".join)
def test_garbage_in_limpet_json_is_one_line(here: Here, command: tuple[str, ...]) -> None:
    limpet.open("fleet").check()
    DirectoryStore("fleet").put(Key("limpet.json"), b"{garbage")
    done = here(*command, "-u", "fleet")
    assert (done.code, done.out) == (1, "")
    said, hint = done.err.splitlines()
    assert said.startswith("limpet: limpet.json is not a valid ")
    assert hint == "hint: stop, keep the object as it is, and report it"


@pytest.mark.parametrize(
    "command", [*ON_A_FLEET, ("lock", "run", "x", "--", "true")], ids=lambda each: " ".join(each[:2])
)
def test_an_unknown_feature_is_refused(here: Here, command: tuple[str, ...]) -> None:
    limpet.open("fleet").check()
    _rewrite_fleet(lambda fields: fields["features"].append("time-machine"))
    done = here(*command[:2], "-u", "fleet", *command[2:])
    assert (done.code, done.out) == (1, "")
    assert "uses feature 'time-machine', which this limpet does not know" in done.err
    assert done.err.endswith("hint: upgrade limpet here: pip install -U limpet\n")


@pytest.mark.parametrize("command", ON_A_FLEET, ids=" ".join)
@pytest.mark.parametrize(("url", "said"), [((), "no URL was given"), (("-u", "ftp://host/x"), "ftp:// is no store")])
def test_a_bad_url_is_wrong_usage(here: Here, command: tuple[str, ...], url: tuple[str, ...], said: str) -> None:
    done = here(*command, *url)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"limpet: {said}")
    assert len(done.err.splitlines()) == 2


def test_break_frees_and_keeps_the_token_rising(here: Here) -> None:
    fleet = limpet.open("fleet")
    old = fleet.lock("x").acquire(0)
    done = here("lock", "break", "x", "-u", "fleet", "--yes")
    assert (done.code, done.err) == (0, "")
    assert "The next holder gets token 2" in done.out
    new = fleet.lock("x").acquire(0)
    assert new.token == 2
    fleet.cell("c").write(2, lease=new)
    with pytest.raises(limpet.LeaseLost):
        fleet.cell("c").write(1, lease=old)
    with pytest.raises(limpet.LeaseLost):
        old.renew()


def test_break_says_in_json_what_it_broke(here: Here) -> None:
    limpet.open("fleet").lock("x").acquire(0)
    broken = json.loads(here("lock", "break", "x", "-u", "fleet", "--yes", "--json").out)
    again = json.loads(here("lock", "break", "x", "-u", "fleet", "--yes", "--json").out)
    assert (broken["broken"], broken["was"]["state"], broken["was"]["token"]) == (True, "held", 1)
    assert (again["broken"], again["was"]["state"]) == (False, "free")


def test_break_needs_a_yes() -> None:
    limpet.open("fleet").lock("x").acquire(0)
    before = _everything()
    command = limpet_command("lock", "break", "x", "-u", "fleet")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("and there is no terminal to ask\nhint: add --yes\n")
    assert _everything() == before


@pytest.mark.parametrize(("answer", "code", "state"), [(b"n\n", 1, "held"), (b"y\n", 0, "free")])
def test_break_asks_on_a_terminal(answer: bytes, code: int, state: str) -> None:
    fleet = limpet.open("fleet")
    fleet.lock("x").acquire(0)
    done = answered(answer, "lock", "break", "x", "-u", "fleet")
    assert done.returncode == code
    assert "Break it? [y/N]" in done.stderr
    record = fleet.lock("x").peek()
    assert record is not None
    assert (record.state.value, record.token) == (state, 1)


def test_upgrade_has_nothing_to_do(here: Here) -> None:
    limpet.open("fleet").check()
    before = _everything()
    done = here("upgrade", "fleet")
    assert done.out == "nothing to do: fleet has the formats of this limpet (catalog 1, index 1, queue 1)\n"
    assert json.loads(here("upgrade", "-u", "fleet", "--json").out)["changed"] is False
    assert _everything() == before


def test_upgrade_says_what_changed(here: Here) -> None:
    limpet.open("fleet").check()
    _rewrite_fleet(lambda fields: fields.update(format={"queue": 0, "index": 1}, min_writer=0))
    done = here("upgrade", "fleet")
    assert (done.code, done.err) == (0, "")
    assert done.out == "upgraded fleet: catalog none -> 1, queue 0 -> 1, writers of level 0 -> 1\n"
    assert limpet.open("fleet").record.format == {"queue": 1, "index": 1, "catalog": 1}


def test_a_damaged_lock_is_replaced_by_force_only(here: Here) -> None:
    fleet = limpet.open("fleet")
    with fleet.lock("x").hold(wait_s=0):
        pass
    key = Key("locks/user/x.lock")
    fields = json.loads(fleet.store.get(key).data) | {"token": (1 << 53) - 1}
    fleet.store.put(key, json.dumps(fields).encode())
    for command in (("lock", "show", "x"), ("lock", "break", "x", "--yes"), ("lock", "run", "x")):
        done = here(*command, "-u", "fleet", *(("--", "true") if "run" in command else ()))
        assert done.code == 1
        assert "limpet lock break NAME --force" in done.err
        assert "Traceback" not in done.err
    assert "add --yes" in here("lock", "break", "x", "--force", "-u", "fleet").err
    assert "unreadable" in here("lock", "ls", "-u", "fleet").out
    replaced = here("lock", "break", "x", "--force", "--yes", "-u", "fleet")
    assert (replaced.code, replaced.err) == (0, "")
    assert "is free now" in replaced.out
    assert here("lock", "run", "x", "-u", "fleet", "--", "true").code == 0
    assert json.loads(here("lock", "break", "x", "--force", "--yes", "--json", "-u", "fleet").out)["broken"] is False
