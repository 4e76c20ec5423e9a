"""The cloud store where it differs from the others: what goes over the wire, and what comes back when it fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest

from limpet.kernel.errors import (
    Conflict,
    Denied,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Always, Match, Put, Version, When
from limpet.kernel.store.cloud import CloudStore
from support.servers.process import Bucket, free_ports
from support.servers.relay import Relay

K = Key("room/thing.json")
OLD = Version('"0123456789abcdef0123456789abcdef"')
KEYS = {"access_key_id": "some", "secret_access_key": "thing"}


def told(error: LimpetError) -> str:
    """The message, after a check that it is one short line, with a hint unless it says all."""
    text = str(error)
    assert len(text.splitlines()) == 1
    assert len(text) < 300
    assert error.hint or isinstance(error, Missing)
    return text


class TestRefusals:
    """What SeaweedFS refuses."""

    @pytest.mark.parametrize("call", [lambda s: s.get(K), lambda s: [*s.list()], lambda s: s.list_dirs()])
    def test_a_bucket_that_is_not_there(self, seaweedfs: Bucket, call: Callable[[CloudStore], object]) -> None:
        store = CloudStore(seaweedfs.url.replace("limpet", "nobody", 1), options=seaweedfs.options)
        with pytest.raises(Invalid) as missing:
            call(store)
        assert "there is no bucket s3://nobody" in told(missing.value)
        assert "region" in missing.value.hint

    @pytest.mark.parametrize(
        ("keys", "reason"),
        [
            ({"access_key_id": "stranger", "secret_access_key": "x"}, "InvalidAccessKeyId"),
            ({"access_key_id": "admin", "secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
        ],
    )
    def test_wrong_credentials(self, seaweedfs: Bucket, keys: dict[str, str], reason: str) -> None:
        store = CloudStore(seaweedfs.url, options=keys)
        calls: list[Callable[[], object]] = [
            lambda: store.get(K),
            lambda: store.put(K, b"1"),
            lambda: store.put(K, b"1", when=Absent()),
            lambda: store.delete(K),
            lambda: [*store.list()],
            lambda: store.sample("", 1),
        ]
        for call in calls:
            with pytest.raises(Denied) as denied:
                call()
            assert reason in told(denied.value)
        with pytest.raises(Denied):
            store.head(K)

    def test_a_read_only_identity(self, seaweedfs: Bucket) -> None:
        url = seaweedfs.at(f"t-{uuid4().hex}")
        CloudStore(url, options=seaweedfs.options).put(K, b"one")
        reader = CloudStore(url, options=seaweedfs.read_only)
        assert reader.get(K).data == b"one"
        assert [stat.key for stat in reader.list()] == [K]
        for when in (Always(), Absent(), Match(reader.head(K).version)):
            with pytest.raises(Denied) as denied:
                reader.put(Key("room/other"), b"two", when=when)
            assert "AccessDenied" in told(denied.value)
        with pytest.raises(Denied):
            reader.delete(K)
        assert isinstance(reader.delete_many([K])[K], Denied)
        assert reader.get(K).data == b"one"

    def test_a_server_that_is_not_there(self) -> None:
        [port] = free_ports(1)
        store = CloudStore(f"s3://b?endpoint=http://127.0.0.1:{port}", options=KEYS)
        with pytest.raises(Unavailable) as unavailable:
            store.get(K)
        reached = f"http://127.0.0.1:{port} cannot be reached: Connection refused"
        assert told(unavailable.value) == f"get room/thing.json: {reached}"
        with pytest.raises(Unavailable):  # not OutcomeUnknown: nothing was sent
            store.put(K, b"1", when=Absent())
        with pytest.raises(Unavailable):
            [*store.list()]

    @pytest.mark.parametrize("status", [None, 404, 500])
    def test_no_credentials(self, script: Script, status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither keys nor a role: the machine's metadata service is not there, knows no role, or is ill."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", "/nowhere")
        script.status = status or 0
        metadata = f"http://127.0.0.1:{script.server_address[1] if status else free_ports(1)[0]}"
        store = CloudStore("s3://b?endpoint=http://127.0.0.1:1", options={"metadata_endpoint": metadata})
        for call in (lambda: store.put(K, b"1", when=Absent()), lambda: store.get(K)):
            with pytest.raises(LimpetError) as failed:
                call()
            told(failed.value)
            assert type(failed.value) is (Unavailable if status == 500 else Denied)
        if status != 500:
            assert "AWS_ACCESS_KEY_ID" in failed.value.hint


class TestOnTheWire:
    """What is sent to SeaweedFS, seen by a relay."""

    @pytest.fixture
    def relay(self, seaweedfs: Bucket) -> Iterator[Relay]:
        with Relay(seaweedfs.env["AWS_ENDPOINT_URL"]) as relay:
            yield relay

    @pytest.fixture
    def store(self, seaweedfs: Bucket, relay: Relay) -> CloudStore:
        url = seaweedfs.at(f"t-{uuid4().hex}").replace(relay.target, relay.address)
        return CloudStore(url, options=seaweedfs.options)

    def test_opening_sends_nothing(self, relay: Relay, store: CloudStore) -> None:
        assert "s3://limpet/t-" in repr(store)
        assert relay.requests == []

    @pytest.mark.parametrize("when", [Always(), Absent()])
    def test_a_put_whose_reply_is_lost_is_unknown_and_not_repeated(
        self, relay: Relay, store: CloudStore, when: When
    ) -> None:
        relay.lose_reply("PUT")
        with pytest.raises(OutcomeUnknown) as unknown:
            store.put(K, b"landed", when=when)
        told(unknown.value)
        assert [each.split("/")[0] for each in relay.requests] == ["PUT "]
        assert store.get(K).data == b"landed"

    def test_a_swap_whose_reply_is_lost_is_unknown(self, relay: Relay, store: CloudStore) -> None:
        base = store.put(K, b"base")
        relay.lose_reply("PUT")
        with pytest.raises(OutcomeUnknown):
            store.put(K, b"landed", when=Match(base))
        with pytest.raises(Conflict):
            store.put(K, b"landed", when=Match(base))

    @pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
    def test_reads_and_deletes_are_repeated(self, relay: Relay, store: CloudStore, method: str) -> None:
        store.put(K, b"one")
        relay.forget()
        relay.lose_reply(method)
        verbs: dict[str, Callable[[Key], object]] = {"GET": store.get, "HEAD": store.head, "DELETE": store.delete}
        verbs[method](K)
        assert len(relay.requests) == 2

    def test_each_verb_is_one_request(self, relay: Relay, store: CloudStore) -> None:
        version = store.put(K, b"one")
        store.put(K, b"two", when=Match(version))
        store.get(K)
        store.head(K)
        [*store.list()]
        store.list_dirs()
        store.sample("", 5)
        store.now()
        store.delete(K)
        assert " ".join(each.split()[0] for each in relay.requests) == "PUT PUT GET HEAD GET GET GET DELETE"

    def test_a_range_moves_only_its_bytes(self, relay: Relay, store: CloudStore) -> None:
        store.put(K, bytes(4 << 20))
        relay.forget()
        assert len(store.get(K, range=(1 << 20, (1 << 20) + 1000)).data) == 1000
        assert relay.bytes_down < 5000

    def test_large_puts_are_one_request(self, relay: Relay, store: CloudStore) -> None:
        store.put(K, bytes(16 << 20), when=Absent())
        assert len(relay.requests) == 1

    def test_listings_are_lazy_and_samples_cost_at_most_two(self, relay: Relay, store: CloudStore) -> None:
        names = [Key(f"flat/{i:04}") for i in range(1500)]
        store.put_many(Put(name, b"x") for name in names)
        relay.forget()
        found = store.list("flat")
        assert relay.requests == []
        assert next(found).key == names[0]
        assert len(relay.requests) == 1
        assert len([*found]) == 1499
        assert len(relay.requests) == 2
        for _ in range(8):
            relay.forget()
            assert len(store.sample("flat", 100)) == 100
            assert len(relay.requests) <= 2


class Script(ThreadingHTTPServer):
    """A server that gives one answer to everything, and keeps the headers that it saw."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Scripted)
        self.status, self.body, self.seen = 500, b"", list[tuple[str, dict[str, str]]]()

    def store(self) -> CloudStore:
        return CloudStore(f"s3://b?endpoint=http://127.0.0.1:{self.server_address[1]}", options=KEYS)


class _Scripted(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
        self.send_response(self.server.status)
        self.send_header("ETag", OLD)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.server.body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def s3_error(code: str) -> bytes:
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code>\n<Message>So it\nis.</Message></Error>".encode()


class TestAnswers:
    """What each answer of a server means, from a scripted one."""

    @pytest.mark.parametrize(
        ("status", "code", "kinds"),
        [
            (412, "PreconditionFailed", (Unavailable, Conflict, Conflict)),
            (409, "ConditionalRequestConflict", (Unavailable, Conflict, Conflict)),
            (404, "NoSuchKey", (Invalid, OutcomeUnknown, Conflict)),
            (404, "", (Invalid, OutcomeUnknown, Conflict)),
            (404, "NoSuchBucket", (Invalid, Invalid, Invalid)),
            (403, "AccessDenied", (Denied, Denied, Denied)),
            (401, "", (Denied, Denied, Denied)),
            (400, "ExpiredToken", (Denied, Denied, Denied)),
            (400, "AuthorizationHeaderMalformed", (Invalid, Invalid, Invalid)),
            (301, "PermanentRedirect", (Invalid, Invalid, Invalid)),
            (400, "InvalidRequest", (Invalid, Invalid, Invalid)),
            (413, "EntityTooLarge", (Invalid, Invalid, Invalid)),
            (501, "NotImplemented", (Unsupported, Unsupported, Unsupported)),
            (400, "RequestTimeout", (OutcomeUnknown, OutcomeUnknown, OutcomeUnknown)),
            (429, "SlowDown", (OutcomeUnknown, OutcomeUnknown, OutcomeUnknown)),
            (500, "InternalError", (OutcomeUnknown, OutcomeUnknown, OutcomeUnknown)),
            (503, "", (OutcomeUnknown, OutcomeUnknown, OutcomeUnknown)),
        ],
    )
    def test_of_puts(self, script: Script, status: int, code: str, kinds: tuple[type[LimpetError], ...]) -> None:
        script.status, script.body = status, s3_error(code) if code else b""
        conditions: list[When] = [Always(), Absent(), Match(OLD)]
        for when, expected in zip(conditions, kinds, strict=True):
            with pytest.raises(LimpetError) as failed:
                script.store().put(K, b"1", when=when)
            assert type(failed.value) is expected
            told(failed.value)
        assert len(script.seen) == 3

    @pytest.mark.parametrize(
        ("status", "kind"), [(404, Missing), (403, Denied), (401, Denied), (400, Invalid), (500, Unavailable)]
    )
    def test_of_reads(self, script: Script, status: int, kind: type[LimpetError]) -> None:
        script.status, script.body = status, s3_error("Something")
        store = script.store()
        listed = Invalid if kind is Missing else kind  # a listing has no object to miss: it is the bucket
        calls: list[tuple[Callable[[], object], type[LimpetError]]]
        calls = [(lambda: store.get(K), kind), (lambda: store.head(K), kind), (lambda: [*store.list("room")], listed)]
        for call, expected in calls:
            with pytest.raises(LimpetError) as failed:
                call()
            assert type(failed.value) is expected
            told(failed.value)

    def test_a_delete_of_what_is_gone_is_fine(self, script: Script) -> None:
        script.status, script.body = 404, s3_error("NoSuchKey")
        script.store().delete(K)
        script.body = s3_error("NoSuchBucket")
        with pytest.raises(Invalid):
            script.store().delete(K)
        script.status = 500
        with pytest.raises(Unavailable):
            script.store().delete(K)

    def test_an_etag_is_sent_with_or_without_its_quotes(self, script: Script) -> None:
        script.status = 200
        store = script.store()
        store.put(K, b"1", when=Match(OLD))
        store.etag_style = "unquoted"
        assert store.put(K, b"1", when=Match(OLD)) == OLD
        store.put(K, b"1", when=Absent())
        conditions = [(headers.get("if-match"), headers.get("if-none-match")) for _, headers in script.seen]
        assert conditions == [(OLD, None), (OLD.strip('"'), None), (None, "*")]

    def test_a_listing_out_of_order_is_refused_where_order_is_expected(self, script: Script) -> None:
        row = "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        rows = "".join(row.format(key) for key in ("a/x", "a-b/x"))
        script.status, script.body = 200, f"<ListBucketResult>{rows}</ListBucketResult>".encode()
        store = script.store()
        assert store.list_order == "folders"
        assert [stat.key for stat in store.list()] == ["a-b/x", "a/x"]
        store.list_order = "keys"
        with pytest.raises(Unsupported) as unsupported:
            [*store.list()]
        assert "a-b/x behind a/x" in told(unsupported.value)
