"""Files that Limpet never wrote, in every folder of a directory: on a disk a name may be any bytes.

Real processes run beside them: `limpet work`, `limpet serve`, `limpet supervise`, on a real clock.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import limpet
from fuzz.kinds import GOOD, Rec
from fuzz.world import command
from support.catalog import append, table
from support.servers.catalog import catalog_server

NAMES = (
    *(b"\xff\xfe", b"\xff.json", b"a\xc3.lock", b"\x1b]0;owned\x07", b"a\nb", b"a\rb.json", b" ", b"...", b"..json"),
    *(b"=", b"=zz.json", b"=00.json", b"=ff.json", b"=2e=2e", b"%zz", b"%2e%2e", b"%ff.json", b"a\\b", b"*", b"-rf"),
    *(b"X.JSON", b"LEASE.json", b"x.json", b"x.lock", b"x.usv", b"00.usv", b"ZZ.usv", b"x.parquet", b".json", b"~"),
    *(b"x" * 255, b"x" * 250 + b".json", b"9" * 200 + b".jsonl", b"z" * 26 + b".json", b"\xe2\x80\xae.json"),
    *(b"task.json", b"tasks.jsonl", b"lease.json", b"manifest.json.bak", b".nfs000000000000001"),
)
PIPES = (b"pipe.json", b"pipe.lock", b"pipe.usv", b"pipe")
FOLDERS = (b"\xff\xfe=", b"\x1b[31m=", b"x", b"X=", b"x.json=", b"task.json", b"\xff.json", b"=", b"x" * 255)


def litter(root: Path) -> int:
    """Put such files and folders into every folder below `root`; how many files. A task's own folder gets no lease."""
    count = 0
    for folder, _, _ in [*os.walk(os.fsencode(root))]:
        of_task = os.path.basename(os.path.dirname(folder)) == b"pending"
        for name in NAMES:
            if of_task and name == b"lease.json":
                continue
            if not os.path.lexists(path := os.path.join(folder, name)):
                with open(path, "wb") as file:
                    file.write(b"{")
                count += 1
        for name in PIPES:
            if not os.path.lexists(path := os.path.join(folder, name)):
                os.mkfifo(path)
        for name in FOLDERS:
            if not os.path.lexists(path := os.path.join(folder, name)):
                os.mkdir(path)
                with open(os.path.join(path, b"\xff.json"), "wb") as file:
                    file.write(b"{")
    return count


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet with some of everything, littered."""
    root = tmp_path_factory.mktemp("disk") / "fleet"
    fleet = limpet.open(root, durability="os", events=True)
    queue = fleet.queue("q")
    queue.push({"n": 1}, id="done")
    with queue.claim() as claim:
        for task in claim:
            task.done({"r": 1})
    queue.push({"n": 1}, id="later", delay_s=3600.0)
    queue.push_many([{"n": n} for n in range(3)])
    for id_ in GOOD:
        queue.push({"n": 1}, id=id_)
    with fleet.lock("l").hold(wait_s=0) as lease:
        fleet.cell("c").write({"n": 1}, lease=lease)
    index = fleet.index("fine", Rec, key="key")
    index.put_many([Rec(f"k{n}", n) for n in range(20)])
    index.compile(full=True)
    index.put(Rec("k1", 2))
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["a"], {})
        catalog.create_table(["a"], table("t2"))
        catalog.commit_table(["a"], "t2", append(catalog.load_table(["a"], "t2"), 1))
    assert litter(root) > 1000
    return root


def test_commands_show_what_is_good(root: Path) -> None:
    url = str(root)
    for arguments, said in (
        (("status",), "q"),
        (("status", "--json"), '"q"'),
        (("queue", "ls"), "q"),
        (("queue", "ls", "q", "-n", "5000"), "g1"),
        (("queue", "show", "q", "done"), "completed"),
        (("lock", "ls"), "l"),
        (("index", "ls"), "fine"),
        (("index", "get", "fine", "k2"), "k2"),
        (
            (
                "index",
                "compile",
            ),
            "",
        ),
        (("index", "verify", "fine"), ""),
        (("index", "stats", "fine"), ""),
        (("catalog", "show"), "t2"),
        (("catalog", "log"), ""),
        (("catalog", "verify"), ""),
        (("catalog", "gc", "--grace", "0s"), ""),
        (("check", "--max-failed", "0"), ""),
        (("events", "ls"), ""),
    ):
        assert said in command(*arguments, "--url", url).out, arguments
    assert len([*limpet.open(root).index("fine").scan()]) == 20


def test_a_backup_is_made_and_whole(root: Path, tmp_path: Path) -> None:
    copy, back = str(tmp_path / "copy"), str(tmp_path / "back")
    command("backup", str(root), copy)
    assert command("backup", "--check", copy).code in (0, 1)
    command("restore", copy, back, "--force")
    assert limpet.open(back).index("fine").get("k2")


def test_a_supervisor_syncs_and_workers_work(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("handler.py").write_text("def handle(n=0):\n    return {'n': n}\n")
    node = tmp_path / "node"
    limpet.open(node, durability="os").queue("q").push({"n": 1}, id="of-node")
    assert litter(node) > 100
    assert command("supervise", "--local", str(node), "--remote", str(root), "--once").code == 0
    done = command("work", "q", "--handler", "handler:handle", "--burst", "--threads", "2", "--url", str(root))
    assert done.code == 0, done
    queue = limpet.open(root).queue("q")
    assert {queue.result(id_).state for id_ in (*GOOD, "of-node")} == {"completed"}
    assert command("supervise", "--local", str(node), "--remote", str(root), "--once").code == 0
    assert limpet.open(node).queue("q").result("of-node").state == "completed"


def test_a_service_serves_and_commits(root: Path) -> None:
    with catalog_server(str(root)) as server:
        server.wait_until_leading()
        assert server.ask("GET", "/v1/namespaces/a/tables/t2").status == 200
        change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        assert server.ask("POST", "/v1/namespaces/a/tables/t2", change).status == 200
        assert server.ask("POST", "/v1/namespaces/a/tables", table("new")).status == 200
        names = {each["name"] for each in server.ask("GET", "/v1/namespaces/a/tables").json["identifiers"]}
        assert {"t2", "new"} <= names
        assert server.stop() == 0
        assert "Traceback" not in server.log()
