"""`limpet cell`: what it reads, writes, counts, lists and removes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, answered


def test_a_value_is_written_read_and_removed(here: Here) -> None:
    done = here("cell", "put", "settings", '{"limit": 5}', "-u", "fleet")
    assert (done.code, done.err) == (0, "(new fleet at fleet)\n")
    assert done.out.startswith("wrote 'settings', version ")
    assert json.loads(here("cell", "get", "settings", "-u", "fleet").out) == {"limit": 5}
    facts = json.loads(here("cell", "get", "settings", "-u", "fleet", "--json").out)
    assert [*facts] == ["name", "value", "version", "writes", "written_at", "lock", "token"]
    assert (facts["value"], facts["writes"], facts["lock"]) == ({"limit": 5}, 1, None)
    shown = here("cell", "rm", "settings", "--dry-run", "-u", "fleet")
    assert shown.out == "would be removed: cell 'settings': {\"limit\":5}\n"
    assert here("cell", "rm", "settings", "--yes", "-u", "fleet").out == "removed cell 'settings'\n"
    gone = here("cell", "get", "settings", "-u", "fleet")
    assert (gone.code, gone.err.splitlines()[0]) == (1, "limpet: there is no cell 'settings' at fleet")
    assert here("cell", "ls", "-u", "fleet").out == "no cell has a value at fleet\n"


def test_compare_and_swap(here: Here) -> None:
    version = json.loads(here("cell", "put", "c", "1", "--create", "-u", "fleet", "--json").out)["version"]
    taken = here("cell", "put", "c", "2", "--create", "-u", "fleet")
    assert (taken.code, taken.err.splitlines()[0]) == (1, "limpet: cell 'c' has a value already; nothing was changed")
    assert here("cell", "put", "c", "2", "--if-version", version, "-u", "fleet").code == 0
    for name in ("c", "other"):
        late = here("cell", "put", name, "3", "--if-version", version, "-u", "fleet")
        assert (late.code, late.err.splitlines()[0]) == (
            1,
            f"limpet: cell '{name}' is no longer version {version}; nothing was changed",
        )
    assert here("cell", "get", "c", "-u", "fleet").out == "2\n"


def test_a_counter(here: Here) -> None:
    assert here("cell", "incr", "n", "-u", "fleet").out == "1\n"
    assert here("cell", "incr", "n", "41", "-u", "fleet").out == "42\n"
    assert here("cell", "incr", "n", "-u", "fleet", "--", "-2").out == "40\n"
    assert here("cell", "incr", "n", "0.5", "-u", "fleet").out == "40.5\n"
    limpet.open("fleet").cell("text").create("ten")
    for arguments, said in (
        (("n", "many"), "'many' is not a number"),
        (("n", "9007199254740992"), "9007199254741032.0 is more than a JSON number holds exactly"),
        (("text",), "cell 'text' holds no number"),
    ):
        refused = here("cell", "incr", *arguments, "-u", "fleet")
        assert (refused.code, refused.err.splitlines()[0]) == (2, f"limpet: {said}")


def test_a_list_is_bounded_and_shows_what_cannot_be_read(here: Here) -> None:
    fleet = limpet.open("fleet")
    for n in range(3):
        fleet.cell(f"c{n}").create({"text": "x" * 100, "n": n})
    Path("fleet/cells/bad.json").write_bytes(b"\x1b[31mgarbage")
    done = here("cell", "ls", "--limit", "2", "-u", "fleet")
    assert done.err == "there are more than 2 cells: --limit shows more\n"
    title, *rows = done.out.splitlines()
    assert title.split() == ["cell", "written", "size", "value"]
    assert [row.split("\t")[0] for row in rows] == ["c0", "c1", "cells/bad.json"]
    assert rows[0].endswith("x...")
    facts = json.loads(here("cell", "ls", "-u", "fleet", "--json").out)
    assert [cell["name"] for cell in facts["cells"]] == ["c0", "c1", "c2"]
    assert (facts["unreadable"][0]["key"], facts["more"]) == ("cells/bad.json", False)
    for command in (("get", "bad"), ("incr", "bad"), ("rm", "bad", "--yes")):
        refused = here("cell", *command, "-u", "fleet")
        assert refused.code == 1
        assert "\x1b" not in refused.err
        assert refused.err.endswith("hint: restore it from a backup, or `limpet cell rm bad --force`\n")
    assert here("cell", "rm", "bad", "--yes", "--force", "-u", "fleet").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("put", "c", "text"), "the value is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        (("put", "c", "NaN"), "the value is not valid JSON: NaN is not JSON"),
        (("put", "c", "1", "--create", "--if-version", "x"), "--create means that there is no version yet"),
        (("put", "", "1"), "a name must be a non-empty string, not ''"),
    ],
)
def test_wrong_usage(here: Here, arguments: tuple[str, ...], said: str) -> None:
    done = here("cell", *arguments, "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    assert f"limpet: {said}" in done.err.splitlines()


def test_it_asks_and_a_no_changes_nothing(here: Here) -> None:
    limpet.open("fleet").cell("c").create(1)
    done = answered(b"n\n", "cell", "rm", "c", "-u", "fleet")
    assert done.returncode == 1
    assert "cell 'c': 1 would be removed, for good." in done.stderr
    assert here("cell", "get", "c", "-u", "fleet").out == "1\n"


# ---- drop ----


def test_a_queue_is_dropped(here: Here) -> None:
    queue = limpet.open("fleet").queue("enrich")
    queue.push({"n": 1}, delay_s=3600)
    shown = here("queue", "drop", "enrich", "--dry-run", "-u", "fleet")
    assert shown.out.startswith("would be removed: queue 'enrich': 1 scheduled; 1 object of ")
    asked = here("queue", "drop", "enrich", "-u", "fleet")
    assert (asked.code, asked.err.splitlines()[-1]) == (2, "hint: add --yes")
    assert here("queue", "drop", "enrich", "--yes", "-u", "fleet").out == "dropped queue 'enrich': 2 objects removed\n"
    queue.push({"n": 1})
    typo = here("queue", "drop", "enrch", "--yes", "-u", "fleet")
    assert typo.err.endswith("hint: did you mean 'enrich'? `limpet queue ls` shows all\n")
    with queue.claim() as claim:
        refused = here("queue", "drop", "enrich", "--yes", "-u", "fleet")
        dry = here("queue", "drop", "enrich", "--dry-run", "-u", "fleet")
        for task in claim:
            task.done()
    assert (refused.code, refused.err[:41]) == (1, "limpet: the queue 'enrich' is in use: vm:"[:41])
    assert dry.err.startswith("in use: ")
    facts = json.loads(here("queue", "drop", "enrich", "--yes", "--json", "-u", "fleet").out)
    assert (facts["kind"], facts["counts"]["completed"], facts["dropped"]) == ("queue", 1, True)


def test_an_index_is_dropped(here: Here) -> None:
    limpet.open("fleet").index("sites", {"fields": [{"name": "id", "type": "string"}]}, key="id").put({"id": "a"})
    shown = here("index", "drop", "sites", "--dry-run", "-u", "fleet")
    assert shown.out.startswith("would be removed: index 'sites': 1 inbox; 260 objects of ")
    dropped = here("index", "drop", "sites", "--yes", "-u", "fleet")
    assert dropped.out == "dropped index 'sites': 260 objects removed\n"
    again = here("index", "create", "sites", "--field", "id:string", "--key", "id", "-u", "fleet")
    assert (again.code, again.err.splitlines()[0][:35]) == (1, "limpet: the index 'sites' was dropp")
    assert here("index", "drop", "sites", "--yes", "--quiesced", "-u", "fleet").code == 0
    assert here("index", "create", "sites", "--field", "id:string", "--key", "id", "-u", "fleet").code == 0
    assert here("index", "drop", "site", "--yes", "-u", "fleet").err.startswith("limpet: there is no index 'site'")


def test_a_lock_is_dropped(here: Here) -> None:
    lock = limpet.open("fleet").lock("nightly")
    with lock:
        held = here("lock", "drop", "nightly", "--yes", "-u", "fleet")
    assert (held.code, held.err.splitlines()[1]) == (
        75,
        "hint: wait until it is free; if its holder is gone: limpet lock break nightly",
    )
    shown = here("lock", "drop", "nightly", "--dry-run", "-u", "fleet")
    assert shown.out == "would be dropped: lock 'nightly', which is free; the next holder gets token 2\n"
    done = here("lock", "drop", "nightly", "--yes", "-u", "fleet")
    assert done.out == "dropped lock 'nightly'; the next holder gets token 2\n"
    assert here("lock", "ls", "-u", "fleet").out == "no lock was ever used at fleet\n"
    assert here("lock", "drop", "nightly", "--yes", "-u", "fleet").code == 1


def test_import_with_a_bad_line_makes_no_index(here: Here) -> None:
    lines = [f'{{"id": "k{n}", "n": {n}}}' for n in range(1200)]
    Path("a.jsonl").write_text("\n".join([*lines, '{"id": "last", "n": "many"}']) + "\n")
    done = here("index", "import", "sites", "a.jsonl", "--create", "--key", "id", "-u", "fleet")
    assert done.code == 2
    said, hint = done.err.splitlines()
    assert said == ("limpet: line 1201: field 'n': expected integer, got str 'many'; nothing was created or imported")
    assert hint.endswith("limpet index create sites --field id:string --field n:integer --key id")
    assert not Path("fleet").exists()
    Path("a.jsonl").write_text("\n".join(lines) + "\n")
    done = here("index", "import", "sites", "a.jsonl", "--create", "--key", "id", "-u", "fleet")
    assert (done.code, done.err) == (0, "(new index: id string, n integer; key id)\n")
