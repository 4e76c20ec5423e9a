"""`limpet doctor` on a folder, a good server and one that ignores conditions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.harness import Here
from limpet.kernel.doctor import CHECKS
from limpet.kernel.store.cloud import CloudStore
from support.servers.process import Bucket


def _log_in(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)


def test_a_folder_is_fit_and_left_as_it_was(here: Here, tmp_path: Path) -> None:
    Path("fleet").mkdir()
    Path("fleet/mine.txt").write_text("mine")
    done = here("doctor", "fleet", "--rounds", "1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    names = [*(check.name for check in CHECKS), "clean-up"]
    assert [line.split("\t")[0] for line in lines if "\tok\t" in line] == names
    assert lines[-1] == "ok  fleet is fit for Limpet"
    assert "p95" in done.out
    assert "\t0.0 ms" not in done.out, "a time has the digits that say something"
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["fleet", "fleet/mine.txt"]


def test_a_folder_that_is_not_there_yet(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIMPET_URL", "not/yet")
    done = here("doctor", "--json", "--rounds", "1")
    said = json.loads(done.out)
    assert (done.code, said["url"], said["ok"]) == (0, "not/yet", True)
    assert [check["name"] for check in said["checks"] if not check["ok"]] == []
    assert {each["verb"] for each in said["latency"]} == {"put", "swap", "head", "get", "list", "delete"}
    assert said["requests"]["put"] > 100
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ((), 2, "no URL was given"),
        (("ftp://host/x",), 2, "ftp:// is no store"),
        (("file/below",), 1, "cannot write below "),
        (("s3://bucket?endpoint=http://127.0.0.1:1&region=none",), 1, ""),
    ],
)
def test_what_cannot_be_examined_is_one_line(
    here: Here, monkeypatch: pytest.MonkeyPatch, url: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    Path("file").write_text("a file, not a folder")
    done = here("doctor", *url)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"limpet: {said}")
    assert [line.partition(":")[0] for line in done.err.splitlines()] == ["limpet", "hint"]


def test_seaweedfs_is_fit(here: Here, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    _log_in(monkeypatch, seaweedfs)
    url = seaweedfs.at(f"doctor-{os.getpid()}")
    done = here("doctor", url, "--json", "--rounds", "1")
    assert done.code == 0, done.out
    assert json.loads(done.out)["ok"] is True
    assert [*CloudStore(url, options=dict(seaweedfs.options)).list()] == []


def test_rclone_ignores_conditions_and_is_refused(
    here: Here, server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    rclone = server("rclone")
    _log_in(monkeypatch, rclone)
    url = rclone.at(f"doctor-{os.getpid()}")
    done = here("doctor", url, "--rounds", "1")
    assert (done.code, done.err) == (1, "")
    [first] = [line for line in done.out.splitlines() if line.startswith("conditional writes")]
    assert "FAIL" in first
    assert "the store ignores conditions" in first
    assert done.out.splitlines()[-1].startswith(f"FAIL  {url} is not fit for Limpet: conditional writes, ")


def test_credentials_are_neither_stored_nor_printed(
    here: Here, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not in objects, output, errors or tracebacks, whether they are right or wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_TRACEBACK", "1")
    _log_in(monkeypatch, seaweedfs)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert len(secret) >= 8
    url = seaweedfs.at(f"secret-{os.getpid()}").partition("?")[0]
    commands = [
        ("queue", "push", "jobs", "{}", "--id", "a", "-u", url),
        ("lock", "run", "one", "-u", url, "--", "true"),
        ("index", "create", "x", "--field", "a:string", "--key", "a", "-u", url),
        ("index", "put", "x", '{"a": "b"}', "-u", url),
        ("status", "--json", "-u", url),
        ("queue", "show", "jobs", "a", "--json", "-u", url),
        ("lock", "show", "one", "--json", "-u", url),
        ("index", "get", "x", "b", "--json", "-u", url),
    ]
    said = []
    for command in commands:
        done = here(*command)
        assert done.code == 0, done.err
        said += [done.out, done.err]
    store = CloudStore(url, options=dict(seaweedfs.options))
    keys = [stat.key for stat in store.list()]
    assert len(keys) > 5
    assert [key for key in keys if secret.encode() in store.get(key).data or secret in key] == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    done = here("status", "-u", url)
    assert done.code == 1
    said += [done.out, done.err]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = here("queue", "push", "jobs", "{}", "-u", url)
    assert done.code == 1
    said += [done.out, done.err]
    assert [text for text in said if secret in text] == []
