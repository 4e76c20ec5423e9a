"""`limpet status`: one screen, few requests, no write."""

from __future__ import annotations

import json

import limpet
from cli.harness import Here
from limpet.kernel.keys import Key
from limpet.kernel.store import DirectoryStore


def test_queues_and_locks_on_one_screen(here: Here) -> None:
    fleet = limpet.open("fleet")
    fleet.queue("enrich").push_many([{}] * 250)
    fleet.queue("mail").push({})
    fleet.queue("mail").pause()
    with fleet.lock("idle").hold(wait_s=0):
        pass
    with fleet.lock("report [x]", ttl_s=30).hold(wait_s=0):
        shown = here("status", "-u", "fleet")
        facts = json.loads(here("status", "-u", "fleet", "--json").out)
    assert (shown.code, shown.err) == (0, "")
    title, enrich, mail, blank, locks, held, *_, cost = shown.out.splitlines()
    assert title.split()[0] == "queue"
    assert enrich.split()[:6] == ["enrich", "250", "0", "0", "0", "0"]
    assert (mail.split()[:2], mail.split()[-1]) == (["mail", "1"], "paused")
    assert (blank, locks.split()[0], held.startswith("report [x]")) == ("", "lock", True)
    assert cost == "This took 7 requests (4 GET, 3 LIST): $0.000017 on S3."
    assert [each["queue"] for each in facts["queues"]] == ["enrich", "mail"]
    assert [(each["name"], each["state"]) for each in facts["locks_held"]] == [("report [x]", "held")]
    assert facts["requests"] == {"get": 4, "list": 3}


def test_a_fleet_where_nothing_happens(here: Here) -> None:
    limpet.open("fleet").check()
    first, blank, second, *_ = here("status", "-u", "fleet").out.splitlines()
    assert (first, blank, second) == ("no queue was ever used at fleet", "", "no lock is held")
    facts = json.loads(here("status", "-u", "fleet", "--json").out)
    assert (facts["queues"], facts["locks_held"]) == ([], [])


def test_it_stops_counting_and_full_does_not(here: Here) -> None:
    fleet = limpet.open("memory://crowded")
    for n in range(10_001):
        fleet.store.put(Key(f"queues/q/completed/{n:05d}.json"), b"{}")
    fleet.queue("q").push({})
    [some] = json.loads(here("status", "-u", "memory://crowded", "--json").out)["queues"]
    assert (some["completed"], some["pending"], some["at_least"]) == (10_000, 1, ["completed"])
    shown = here("status", "-u", "memory://crowded").out
    assert "\t10,000+\t" in shown
    assert "counting stopped at 10,000 objects of a kind" in shown
    [whole] = json.loads(here("status", "--full", "-u", "memory://crowded", "--json").out)["queues"]
    assert (whole["completed"], whole["at_least"]) == (10_001, [])


def test_it_writes_nothing(here: Here) -> None:
    fleet = limpet.open("fleet")
    fleet.queue("q").push({})
    store = DirectoryStore("fleet")
    before = {stat.key: stat.version for stat in store.list()}
    assert here("status", "-u", "fleet").code == 0
    assert {stat.key: stat.version for stat in store.list()} == before
