"""From a URL to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet.app.place import absolute, store_for, url_or_default
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MemoryStore


def test_a_path_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url, path in [
        ("./fleet", tmp_path / "fleet"),
        ("fleet", tmp_path / "fleet"),
        (str(tmp_path / "abs"), tmp_path / "abs"),
        ("~/fleet", tmp_path / "home" / "fleet"),
        (f"file://{tmp_path}/a%20b", tmp_path / "a b"),
        (f"file://localhost{tmp_path}/x", tmp_path / "x"),
    ]:
        store = store_for(url, system())
        assert isinstance(store, DirectoryStore)
        assert store.root == path
    assert [*tmp_path.iterdir()] == [], "nothing is made before something is written"


def test_memory_is_shared_by_name_within_the_process() -> None:
    one = store_for("memory://urls-test", system())
    one.put(Key("a"), b"1")
    assert store_for("memory://urls-test", system()).get(Key("a")).data == b"1"
    alone = store_for("memory://", system())
    assert isinstance(alone, MemoryStore)
    assert alone is not store_for("memory://", system())
    assert [*alone.list()] == []


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://bucket", "s4://b", "://x", "file://relative/path", "file://", "file://host/x"]
)
def test_what_is_no_store_is_invalid(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        store_for(url, system())
    assert caught.value.hint


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s3:/x", "write s3://x,"),
        ("s3:bucket/prefix", "write s3://bucket/prefix,"),
        ("s3:", "write s3://,"),
        ("gs:/bucket", "gs://bucket"),
        ("memory:x", "memory://x"),
        ("file:x", "file://x"),
        ("http:/x", "./http:/x"),
        ("s4:x/y", "./s4:x/y"),
    ],
)
def test_a_url_with_too_few_slashes_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (lambda: store_for(url, system()), lambda: absolute(url), lambda: limpet.open(url)):
        with pytest.raises(Invalid, match="is no URL and no path") as caught:
            use()
        assert hint in caught.value.hint
    assert [*tmp_path.iterdir()] == []


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("./s3:/x", str(tmp_path / "s3:" / "x")):
        store = store_for(url, system())
        assert isinstance(store, DirectoryStore)
        assert store.root == tmp_path / "s3:" / "x"
    store = store_for(f"file:{tmp_path}/x", system())
    assert isinstance(store, DirectoryStore)
    assert store.root == tmp_path / "x"


@pytest.mark.parametrize(
    ("given", "environment", "found"),
    [("./a", "./b", "./a"), (None, "./b", "./b"), (Path("a/b"), None, "a/b")],
)
def test_which_url_counts(
    monkeypatch: pytest.MonkeyPatch, given: str | Path | None, environment: str | None, found: str
) -> None:
    monkeypatch.delenv("LIMPET_URL", raising=False)
    if environment is not None:
        monkeypatch.setenv("LIMPET_URL", environment)
    assert url_or_default(given) == found


@pytest.mark.parametrize("url", [None, ""])
def test_no_url_at_all_is_invalid(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    monkeypatch.delenv("LIMPET_URL", raising=False)
    with pytest.raises(Invalid, match="no URL was given"):
        url_or_default(url)
