"""Objects in an S3 bucket whose names the client library refuses: they hide nothing, and stop nobody."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

import pytest

import limpet
from limpet.kernel.errors import Denied, Invalid, LimpetError, Unavailable, Unsupported
from limpet.kernel.keys import Key, is_key
from limpet.kernel.runtime import SystemRuntime
from limpet.kernel.store import s3_list
from limpet.kernel.store.cloud import CloudStore
from support.servers.misbehaving import Misbehaving, misbehaving
from support.servers.process import Bucket
from support.servers.s3 import create_bucket, request

BAD = {
    "//x": "an empty segment",
    "/x//y": "an empty segment further down",
    "//": "two slashes at the end",
    "/./x": "a segment `.`",
    "/../x": "a segment `..`",
    "/.": "a last segment `.`",
    "/..": "a last segment `..`",
    "/a\x01b": "a control character",
    "/a\nb": "a line feed",
    "/a\x1b[31mb": "an escape sequence",
    "/a\x7fb": "a delete character",
}
"""What stands behind the folder's name, in keys that obstore 0.12 fails a page for."""

GOOD = ["room/a", "room/a b", "room/a+b", "room/a%2Fb", "room/sub-1/x", "room/sub/x", "room/z/é"]
FOLDERS = ["sub", "sub-1", "z"]

_COLLAPSED = {"//x", "/x//y", "//"}
_REFUSED = {"/./x", "/../x", "/.", "/.."}
_REPLACED = {"/a\x01b", "/a\x1b[31mb"}
TAKES = {"moto": BAD.keys() - {"/a\nb"}, "seaweedfs": BAD.keys() - _COLLAPSED - _REFUSED - _REPLACED, "rgw": BAD.keys()}
"""Which of them a server takes and lists as they are. SeaweedFS lists most control characters as U+FFFD."""

_FULL = [pytest.mark.full, pytest.mark.timeout(600)]
SERVERS = ["moto", "seaweedfs", pytest.param("rgw", marks=_FULL)]


class Place:
    """A prefix of a bucket on a real server."""

    def __init__(self, name: str, bucket: Bucket) -> None:
        self.name = name
        self.endpoint = bucket.env.get("AWS_ENDPOINT_URL") or bucket.env["LIMPET_SQS_ENDPOINT"]
        self.keys = bucket.options or {"access_key_id": "test", "secret_access_key": "test"}
        self.reader = bucket.read_only or self.keys
        self.prefix = f"t {uuid4().hex}"
        assert create_bucket(self.endpoint, "limpet", self.keys)

    def store(self, keys: dict[str, str] | None = None) -> CloudStore:
        """A store there."""
        url = f"s3://limpet/{self.prefix}?endpoint={self.endpoint}&region=us-east-1"
        return CloudStore(url, options=keys or dict(self.keys))

    def put(self, key: str) -> None:
        """Write an object, whatever its name."""
        status, answer = request(self.endpoint, self.keys, "PUT", f"/limpet/{self.prefix}/{key}", body=b"foreign")
        assert status == 200, answer


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest, server: Callable[[str], Bucket]) -> Place:
    return Place(str(request.param), server(str(request.param)))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "limpet.store"]


def check_all(store: CloudStore, good: list[str], folders: Iterable[str] = ()) -> None:
    """Every way to list gives exactly the good ones. Folders of others show too."""
    assert [stat.key for stat in store.list("room")] == sorted(good)
    assert [stat.key for stat in store.list()] == sorted(good)
    assert sorted(stat.key for stat in store.sample("room", 1000)) == sorted(good)
    assert [*store.list_dirs("room")] == sorted([*FOLDERS, *folders])
    assert [*store.list_dirs()] == ["room"]
    for after in ("room/a+b", "room/sub/x", "room/sub", "room/"):
        assert [stat.key for stat in store.list("room", after=after)] == [key for key in sorted(good) if key > after]


# ---- on real servers ----


@pytest.mark.parametrize(
    ("place", "bad"),
    [
        pytest.param(name, bad, id=f"{name}-{BAD[bad]}", marks=_FULL if name == "rgw" else [])
        for name in TAKES
        for bad in sorted(TAKES[name])
    ],
    indirect=["place"],
)
def test_a_refused_name_hides_nothing(place: Place, bad: str, caplog: pytest.LogCaptureFixture) -> None:
    store = place.store()
    assert not is_key(f"room{bad}")
    for name in GOOD:
        store.put(Key(name), b"1")
    place.put(f"room{bad}")
    folders = ["x"] if bad == "/x//y" else []
    for order in ("folders", "keys") if place.name != "seaweedfs" else ("folders",):
        store.list_order = "keys" if order == "keys" else "folders"
        check_all(store, GOOD, folders)
    assert [stat.version for stat in store.list("room")] == [store.head(Key(name)).version for name in sorted(GOOD)]
    assert [stat.modified.tzinfo is not None for stat in store.list("room")] == [True] * len(GOOD)
    told = warned(caplog)
    assert told
    assert all("remove that object" in line and "\x1b" not in line and "\n" not in line for line in told)


@pytest.mark.parametrize("place", SERVERS[1:], indirect=True)
def test_our_own_request_is_signed(place: Place) -> None:
    """A read-only key may list; nobody may list another folder than the one that was signed for."""
    place.put("room/a\x7fb")
    store = place.store(dict(place.reader))
    assert [*store.list("room")] == []
    url = store._sign(s3_list.page_query(f"{place.prefix}/room/", after=None, token=None, by_folder=False))
    assert s3_list.fetch(url, SystemRuntime())[0] == 200
    assert s3_list.fetch(url.replace("room", "ruom"), SystemRuntime())[0] == 403


def test_a_refused_name_on_the_second_page(server: Callable[[str], Bucket]) -> None:
    place = Place("seaweedfs", server("seaweedfs"))
    store = place.store()
    names = [f"room/{i:05}" for i in range(1200)]
    store._runtime.fan_out(lambda name: store.put(Key(name), b"1"), names)
    place.put("room/01100\x7f")
    assert [stat.key for stat in store.list("room")] == names
    assert [stat.key for stat in store.list("room", after=names[1050])] == names[1051:]


def test_a_folder_of_refused_names_only(place: Place) -> None:
    for bad in TAKES[place.name]:
        place.put(f"room{bad}")
    store = place.store()
    assert [*store.list("room")] == []
    assert [*store.sample("room", 9)] == []
    assert set(store.list_dirs("room")) <= {"x"}


def test_a_fleet_goes_on_beside_a_double_slash(
    server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place("moto", server("moto"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    fleet = limpet.open(f"s3://limpet/{quote(place.prefix)}?endpoint={place.endpoint}&region=us-east-1")
    queue = fleet.queue("q")
    queue.push({"n": 1}, id="one")
    for folder in ("queues/q/pending", "queues/q", "queues", "locks/user", "cells"):
        place.put(f"{folder}//x")
        place.put(f"{folder}/../x")
    with queue.claim() as claim:
        for task in claim:
            task.done(task.id)
    assert (queue.stats().pending, queue.stats().completed) == (0, 1)


# ---- on the wire ----


@pytest.fixture
def wire() -> Iterator[Misbehaving]:
    with misbehaving() as server:
        yield server


@pytest.fixture(params=["keys", "folders"])
def store(request: pytest.FixtureRequest, wire: Misbehaving) -> CloudStore:
    store = wire.store()
    store.list_order = "keys" if request.param == "keys" else "folders"
    return store


class Unhurried(SystemRuntime):
    """Waits for nothing, and counts how often it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0

    def sleep(self, seconds: float) -> None:
        assert seconds < 2
        self.pauses += 1


@pytest.mark.parametrize("bad", [*BAD, "/a\x00b", "//" + "\x1f" * 300], ids=ascii)
def test_each_kind_of_refused_name(wire: Misbehaving, store: CloudStore, bad: str) -> None:
    wire.objects |= {f"fleet/{name}": b"1" for name in GOOD}
    wire.objects[f"fleet/room{bad}"] = b""
    check_all(store, GOOD, ["x"] if bad == "/x//y" else [])


def test_it_costs_one_request_more(wire: Misbehaving, store: CloudStore) -> None:
    """And none if no name is refused."""
    names = [f"room/{i:05}" for i in range(2500)]
    wire.objects |= {f"fleet/{name}": b"1" for name in names}
    for bad, lists, own in [("", 3, 0), ("room/00500\x7f", 1, 3), ("room/01500\x7f", 2, 2), ("room/02400//", 3, 1)]:
        if bad:
            wire.objects[f"fleet/{bad}"] = b""
        wire.requests.clear()
        assert [stat.key for stat in store.list("room")] == names
        beside = int(own < 3 and bool(bad) and store.list_order == "folders")  # what may be below the last key
        assert [wire.requests.count(f"{verb} ") for verb in ("LIST", "OWN")] == [lists, own + beside]
        wire.objects.pop(f"fleet/{bad}", None)


def test_a_sample_costs_one_request_more(wire: Misbehaving, store: CloudStore) -> None:
    wire.objects |= {"fleet/room/a": b"", "fleet/room//b": b""}
    assert [stat.key for stat in store.sample("room", 9)] == ["room/a"]
    assert wire.requests == ["LIST ", "OWN "]
    wire.requests.clear()
    assert [*store.list_dirs()] == ["room"]
    assert wire.requests == ["LIST "]


def test_thousands_of_refused_names(wire: Misbehaving, store: CloudStore, caplog: pytest.LogCaptureFixture) -> None:
    """They cost their pages, and a bounded number of warnings."""
    wire.objects |= {f"fleet/room/{i:05}\x7f": b"" for i in range(2500)}
    wire.objects |= {"fleet/room/0": b"1", "fleet/room/01200": b"1", "fleet/room/z": b"1"}
    good = ["room/0", "room/01200", "room/z"]
    for _ in range(2):
        assert [stat.key for stat in store.list("room")] == good
    assert len(warned(caplog)) == 100
    seen = {stat.key for _ in range(9) for stat in store.sample("room", 9)}
    assert seen == set(good)


@pytest.mark.parametrize("prefix", ["", "fl eet/é+%2F"])
def test_any_prefix(wire: Misbehaving, prefix: str) -> None:
    store = wire.store(prefix.replace("%", "%25"))
    for name in GOOD:
        store.put(Key(name), b"1")
    wire.objects[f"{prefix}/room//x" if prefix else "room//x"] = b""
    for order in ("keys", "folders"):
        store.list_order = "keys" if order == "keys" else "folders"
        check_all(store, GOOD)


ACTS = {
    "403": Denied,
    "404 bucket": Invalid,
    "redirect": Unavailable,
    "cut": Unavailable,
    "garbage": Unavailable,
    "huge": Unavailable,
    "bomb": Unavailable,
    "other": Unavailable,
    "no token": Unavailable,
    "foreign": Unsupported,
}


@pytest.mark.parametrize("act", ACTS)
def test_an_answer_that_is_wrong_is_an_error(wire: Misbehaving, store: CloudStore, act: str) -> None:
    wire.objects |= {"fleet/room/a": b"1", "fleet/room//b": b""}
    for call in (lambda: [*store.list("room")], lambda: [*store.sample("room", 9)], lambda: [*store.list_dirs("room")]):
        wire.requests.clear()
        wire.act("OWN", act)
        with pytest.raises(LimpetError) as caught:
            call()
        assert type(caught.value) is ACTS[act]
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 400
        assert caught.value.hint
        assert "X-Amz" not in str(caught.value)
        assert wire.requests == ["LIST ", "OWN "], "it is not asked again"
        if act != "foreign":
            assert "fleet/room//" in str(caught.value), "the object is named"


@pytest.mark.parametrize("act", ["429", "500 before", "drop before", "short"])
def test_a_server_that_is_busy_is_asked_again(wire: Misbehaving, act: str) -> None:
    runtime = Unhurried()
    store = CloudStore(
        f"s3://b/fleet?endpoint={wire.address}&region=us-east-1",
        options={"access_key_id": "some", "secret_access_key": "thing"},
        runtime=runtime,
    )
    wire.objects |= {"fleet/room/a": b"1", "fleet/room//b": b""}
    wire.act("OWN", *[act] * 3)
    assert [stat.key for stat in store.list("room")] == ["room/a"]
    assert runtime.pauses == 3
    wire.act("OWN", *[act] * 4)
    with pytest.raises(Unavailable, match="fleet/room//b"):
        [*store.list("room")]
    assert runtime.pauses == 6
    assert wire.requests.count("OWN ") == 8


@pytest.mark.parametrize("act", ["cut", "garbage", "bomb"])
def test_a_page_that_the_client_cannot_read_is_asked_for_once_more(
    wire: Misbehaving, store: CloudStore, act: str
) -> None:
    """A name may be such that it cannot stand in XML, and then the client does not say which."""
    wire.objects |= {"fleet/room/a": b"1", "fleet/room/b": b"1"}
    wire.act("LIST", act)
    assert [stat.key for stat in store.list("room")] == ["room/a", "room/b"]
    wire.act("LIST", act)
    wire.act("OWN", act)
    with pytest.raises(Unavailable, match=r"^list room: it "):
        [*store.list("room")]


def test_an_answer_that_trickles_is_given_up(wire: Misbehaving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for a whole page, however often a byte arrives."""

    class Slow(Unhurried):
        def elapsed_s(self) -> float:
            self.pauses += 1
            return self.pauses * 1000.0

    wire.objects |= {"fleet/room/a": b"1"}
    store = wire.store()
    url = store._sign(s3_list.page_query("fleet/room/", after=None, token=None, by_folder=False))
    with pytest.raises(TimeoutError, match="not complete after 120 s"):
        s3_list.fetch(url, Slow())


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_on_other_clouds_the_object_is_named(scheme: str, wire: Misbehaving) -> None:
    """There is no other way to list there. The client's errors are the same for every cloud: this is one for S3."""
    store = wire.store()
    wire.objects |= {"fleet/room/a": b"1", "fleet/room/a\x1b\nb": b""}
    store._place = replace(store._place, scheme=scheme)
    for call in (lambda: [*store.list("room")], lambda: [*store.list_dirs("room")]):
        with pytest.raises(Unavailable) as caught:
            call()
        assert str(caught.value) == r"list room: the client cannot list the object fleet/room/a\u{1b}\nb"
        assert caught.value.hint.startswith("remove that object")


# ---- credentials from where the client has them ----

ROLE = {
    "AccessKeyId": "ROLE",
    "SecretAccessKey": "hush",
    "Token": "session",
    "Expiration": "2100-01-01T00:00:00Z",
    "Code": "Success",
    "LastUpdated": "2026-01-01T00:00:00Z",
    "Type": "AWS-HMAC",
}


class _Metadata(BaseHTTPRequestHandler):
    """A machine's own service for its role (IMDSv2)."""

    def _answer(self) -> None:
        bodies = {"/latest/api/token": "token", "/latest/meta-data/iam/security-credentials/": "the-role"}
        body = bodies.get(self.path, json.dumps(ROLE)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No credentials in the environment, and an AWS settings file to write."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    return tmp_path / "config"


def signer(wire: Misbehaving, options: dict[str, str]) -> tuple[str, str]:
    """Whose key and session our own listing is signed with."""
    wire.objects |= {"fleet/room/a": b"1", "fleet/room//b": b""}
    store = CloudStore(f"s3://b/fleet?endpoint={wire.address}&region=us-east-1", options=options)
    assert [stat.key for stat in store.list("room")] == ["room/a"]
    url = store._sign(s3_list.page_query("fleet/room/", after=None, token=None, by_folder=False))
    signed = parse_qs(urlsplit(url).query)
    return signed["X-Amz-Credential"][0].partition("/")[0], signed["X-Amz-Security-Token"][0]


def test_the_role_of_a_machine_signs(wire: Misbehaving, no_keys: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as metadata:
        thread = threading.Thread(target=metadata.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{metadata.server_address[1]}"
            assert signer(wire, {"metadata_endpoint": address}) == ("ROLE", "session")
        finally:
            metadata.shutdown()
            thread.join()


def test_a_profile_that_needs_boto3_signs(wire: Misbehaving, no_keys: Path) -> None:
    pytest.importorskip("boto3")
    found = json.dumps({"Version": 1, **{name.replace("Token", "SessionToken"): ROLE[name] for name in (*ROLE,)[:4]}})
    (no_keys.parent / "found.json").write_text(found)
    no_keys.write_text(f"[default]\ncredential_process = cat {no_keys.parent / 'found.json'}\n")
    assert signer(wire, {}) == ("ROLE", "session")


def test_nobody_signs_for_a_public_bucket(wire: Misbehaving, no_keys: Path) -> None:
    wire.objects |= {"fleet/room/a": b"1", "fleet/room//b": b""}
    options = {"skip_signature": "true", "metadata_endpoint": "http://127.0.0.1:1"}
    store = CloudStore(f"s3://b/fleet?endpoint={wire.address}&region=us-east-1", options=options)
    assert [stat.key for stat in store.list("room")] == ["room/a"]


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, "https://s3.eu-west-1.amazonaws.com/b?list-type=2&"),
        ({"virtual_hosted_style_request": "true"}, "https://b.s3.eu-west-1.amazonaws.com?list-type=2&"),
    ],
)
def test_our_own_request_goes_where_the_clients_go(options: dict[str, str], start: str) -> None:
    keys = {"access_key_id": "some", "secret_access_key": "thing", **options}
    store = CloudStore("s3://b/fleet?region=eu-west-1", options=keys)
    url = store._sign(s3_list.page_query("fleet/", after="fleet/é &+", token=None, by_folder=True))
    assert url.replace(".com/?", ".com?").startswith(start)
    asked = parse_qs(urlsplit(url).query)
    assert {name: asked[name] for name in ("prefix", "start-after", "delimiter")} == {
        "prefix": ["fleet/"],
        "start-after": ["fleet/é &+"],
        "delimiter": ["/"],
    }


# ---- marks of folders: objects whose names end in a slash ----


def test_the_mark_of_a_folder_cuts_no_listing_short(wire: Misbehaving, store: CloudStore) -> None:
    """A page of 1,000 that holds the mark has 999 objects, and others follow."""
    names = [f"room/{i:05}" for i in range(2500)]
    wire.objects |= {f"fleet/{name}": b"1" for name in [*names, "room/"]}
    assert [stat.key for stat in store.list("room")] == names
    assert wire.requests.count("LIST ") == 3
    seen = {stat.key for _ in range(9) for stat in store.sample("room", 1000)}
    assert len(seen) > 1000


@pytest.mark.parametrize("beside", ["room/sub-1", "room/sub", "room/sub.json"])
def test_a_mark_beside_names_that_sort_before_its_slash(wire: Misbehaving, store: CloudStore, beside: str) -> None:
    """The client cuts the slash off, and then `sub` comes behind `sub-1`, or twice: that is no server out of order."""
    wire.objects |= {f"fleet/{name}": b"1" for name in ("room/a", beside, "room/sub/", "room/sub/x", "room/z")}
    found = [stat.key for stat in store.list("room")]
    assert [key for key in found if key != "room/sub" or beside == key] == ["room/a", beside, "room/sub/x", "room/z"]
    assert wire.requests == ["LIST "]


# ---- the parser ----

TEXTS = "<Key>a%2Fb+c%2Bd</Key><LastModified>{}</LastModified><ETag>&quot;e&quot;</ETag><Size>{}</Size>"
ROW = f"<Contents>{TEXTS}</Contents>"
URL = "<EncodingType>url</EncodingType>"


def page(text: str) -> s3_list.RawPage:
    return s3_list.parse(
        f"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{text}</ListBucketResult>".encode()
    )


def test_keys_are_decoded_if_the_server_says_that_they_are_encoded() -> None:
    row = ROW.format("2026-01-01T00:00:00.000Z", 7)
    assert [meta["path"] for meta in page(URL + row).objects] == ["a/b c+d"]
    assert [meta["path"] for meta in page(row + URL).objects] == ["a/b c+d"]
    assert [meta["path"] for meta in page(row).objects] == ["a%2Fb+c%2Bd"]
    [meta] = page(row).objects
    assert (meta["size"], meta["e_tag"], meta["last_modified"].isoformat()) == (7, '"e"', "2026-01-01T00:00:00+00:00")
    not_utf8 = page(URL + row.replace("a%2F", "%ff%2F")).objects
    assert [s3_list.is_refused(meta["path"]) for meta in not_utf8] == [True]


@pytest.mark.parametrize(
    "text",
    [
        ROW.format("2026-01-01T00:00:00", 7),
        ROW.format("yesterday", 7),
        ROW.format("", 7),
        ROW.format("2026-01-01T00:00:00Z", -7),
        ROW.format("2026-01-01T00:00:00Z", "9" * 20),
        ROW.format("2026-01-01T00:00:00Z", ""),
        ROW.format("2026-01-01T00:00:00Z", 1).replace("Key", "Kee"),
        "<IsTruncated>perhaps</IsTruncated>",
        "<IsTruncated>true</IsTruncated>",
        "<IsTruncated>true</IsTruncated><NextContinuationToken/>",
        "<a>" * 9 + "</a>" * 9,
        "&nbsp;",
        "&#1;",
    ],
)
def test_a_page_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        page(text)


def test_whether_a_listing_goes_on() -> None:
    token = "<NextContinuationToken>t</NextContinuationToken>"
    assert page("").token is None
    assert page(token).token == "t"
    assert page(f"<IsTruncated>true</IsTruncated>{token}").token == "t"
    assert page(f"<IsTruncated>false</IsTruncated>{token}").token is None


@pytest.mark.parametrize(
    "key", ["a//b", "/a", "a/", ".", "..", "a/.", "./a", "a/../b", "", "a\x00", "a\n", "\x7f", "\udcff"]
)
def test_what_is_refused(key: str) -> None:
    assert s3_list.is_refused(key)
    assert not is_key(key)


@pytest.mark.parametrize("key", ["a", "a/b", "...", ".a", "a.", "a..b/c", "a\\b", "é", "\x85", "a/.uploads/b"])
def test_what_is_not(key: str) -> None:
    assert not s3_list.is_refused(key)
