"""`CloudStore`: a prefix of a bucket on S3 (or a server with its API), Google Cloud Storage or Azure Blob Storage."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from limpet.kernel.errors import (
    Conflict,
    Denied,
    Invalid,
    LimpetError,
    Missing,
    NotModified,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import Key, check, check_path, check_prefix
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store import s3_list
from limpet.kernel.store.api import Absent, Always, Blob, Match, Stat, Store, Version, When, check_size
from limpet.kernel.store.credentials import Place, boto3_session, locate
from limpet.kernel.store.listing import ListedPage, in_key_order, inside, key_between
from limpet.kernel.wording import many

T = TypeVar("T")

LARGE_BYTES = 1 << 20
JUMP_MAX = 10.0
"""The first sample of a large prefix starts up to 2**10 pages ahead, by the distance between the keys of a page."""

_CLIENT = {"connect_timeout": "5s", "pool_idle_timeout": "10s"}
# A read may take an hour if bytes keep coming. No bytes come while a put uploads, so it has a limit for the whole: ten
# minutes are enough for 64 MiB at 1 Mbit/s.
_READ = {**_CLIENT, "timeout": "1h", "read_timeout": "30s"}
_SMALL_PUT = {**_CLIENT, "timeout": "30s"}
_LARGE_PUT = {**_CLIENT, "timeout": "10m"}

_BAD_CREDENTIALS = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthenticationFailed")
_CREDENTIALS_HINT = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

PAGE = 1000

_REMOVE = "remove that object: no object of Limpet's has such a name"
_SIGNED = timedelta(minutes=15)
_log = logging.getLogger("limpet.store")

_FAILURES = (BaseError, OSError)

_clients_of: int | None = None
"""The process that has made a client. The client library's threads do not survive a fork: a request of the child would
never end."""


def _refuse_fork() -> None:
    if _clients_of not in (None, os.getpid()):
        raise Unsupported(
            "a bucket was opened before this process was forked, and its client does not survive that",
            hint='open it only after the fork, or start processes with multiprocessing.set_start_method("spawn")',
        )


class CloudStore(Store):
    """Objects below a bucket's prefix: `s3://bucket/prefix?endpoint=http://host:port&region=us-east-1`, `gs://`, `az://`.

    `options` are settings of the client library and override URL, environment and profile. Versions are ETags; on
    Google Cloud they are generations, except in listings, which have ETags only.

    `etag_style`: how If-Match is sent with a put. Ceph RGW expects the ETag without its quotes; `probe` finds out.
    `list_order`: "keys" for servers that list in key order; "folders" for those that may list folder by folder, where
    `in_key_order` restores the order. S3 and Google Cloud list in key order; of any other server the latter is assumed.

    A put is sent once (F1). `Conflict` means that the server reported a failed condition, which does not prove that
    another writer wrote: S3's 409, after which nothing was written, gives the same error (F6). `outcome` reads back.
    """

    far = True

    def __init__(self, url: str, *, runtime: Runtime | None = None, options: Mapping[str, str] | None = None) -> None:
        """Check the URL and find the credentials.   Cost: nothing is sent yet."""
        super().__init__(runtime or system())
        self._place = locate(url, options)
        self._reads = _client(self._place, _READ, max_retries=3)
        self._small_puts = _client(self._place, _SMALL_PUT, max_retries=0)
        self._large_puts = _client(self._place, _LARGE_PUT, max_retries=0)
        self._by_generation = self._place.scheme == "gs"
        self._walked: dict[str, str] = {}
        self._warned: set[str] = set()
        self._bucket_url: str | None = None
        self.etag_style: Literal["quoted", "unquoted"] = "quoted"
        known = self._place.scheme != "az" and self._place.endpoint is None
        self.list_order: Literal["keys", "folders"] = "keys" if known else "folders"

    def __repr__(self) -> str:
        return f"CloudStore({str(self._place)!r})"

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        """Cost: 1 HEAD more for a failed `if_match` elsewhere than on S3, and for any `if_none_match` on Google
        Cloud."""
        check_path(key)
        options: dict[str, Any] = {}
        if range is not None:
            if not 0 <= range[0] < range[1]:
                raise Invalid(f"the range {range[0]}..{range[1]} of {key} is not one", hint="give 0 <= start < stop")
            options["range"] = range
        if if_match is not None:
            options["version" if self._by_generation else "if_match"] = if_match
        if if_none_match is not None and not self._by_generation:
            options["if_none_match"] = if_none_match
        elif if_none_match is not None and self.head(key).version == if_none_match:
            raise NotModified(f"{key} is still version {if_none_match}")
        try:
            return self._read(f"get {key}", lambda: self._fetch(key, options, None if range else size_max))
        except (Missing, Conflict):
            if if_match is None or self._place.scheme == "s3":
                raise
            self.head(key)  # F7: raises Missing
            raise Conflict(f"get {key}: no longer that version") from None

    def _fetch(self, key: Key, options: Mapping[str, Any], size_max: int | None) -> Blob:
        result = obstore.get(self._reads, key, options=cast(Any, options or None))  # a TypedDict of obstore's stubs
        check_size(key, result.meta["size"], size_max)
        data = bytes(result.bytes())
        start, stop = result.range
        if len(data) != stop - start:  # F23
            raise Unavailable(f"get {key}: the server sent {len(data)} of {many(stop - start, 'byte')}")
        stat = self._stat(result.meta)
        return Blob(data, stat.version, stat.modified, stat.size)

    def head(self, key: Key) -> Stat:
        check_path(key)
        return self._read(f"head {key}", lambda: self._stat(obstore.head(self._reads, key)))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """Also raises: Invalid, when the bucket does not exist; Unavailable, when nothing was sent."""
        check(key)
        _refuse_fork()
        client = self._small_puts if len(data) <= LARGE_BYTES else self._large_puts
        try:
            result = obstore.put(client, key, data, mode=self._mode(when), use_multipart=False)
        except _FAILURES as error:
            raise self._put_failed(key, when, error) from None
        version = result["version"] if self._by_generation else _quoted(result["e_tag"])
        if not version:
            hint = "use a server that answers puts with an ETag"
            raise Unsupported(f"the server gives no version for {key}", hint=hint)
        return Version(version)

    def _mode(self, when: When) -> Any:
        match when:
            case Absent():
                return "create"
            case Match(version) if self._by_generation:
                return {"version": version}
            case Match(version):
                return {"e_tag": version if self.etag_style == "quoted" else version.strip('"')}
            case _:
                return "overwrite"

    def delete(self, key: Key) -> None:
        check_path(key)
        _refuse_fork()
        try:
            obstore.delete(self._reads, key)
        except _FAILURES as error:
            answer = read_answer(str(error))
            if isinstance(error, PreconditionError):  # none was sent
                raise Unavailable(f"delete {key}: {answer.line}") from None
            if not isinstance(error, FileNotFoundError) or answer.no_bucket:
                raise self._failure(f"delete {key}", error, answer) from None

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """Cost: as `in_key_order` where the server lists folder by folder; 1 LIST more if a name is one that the client
        library refuses (`_pages`)."""
        folder = check_prefix(prefix)
        start = check_prefix(after) if after else None
        if self.list_order == "folders":
            found = in_key_order(self._pages, folder, start)
        else:
            found = (stat for page in self._pages(folder, start) for stat in page.objects)
        return found if after is None else (stat for stat in found if stat.key > after)

    def _pages(self, folder: str, after: str | None) -> Iterator[ListedPage]:
        """The listing of the client library; on S3, from the page on that it fails for, our own (`s3_list`)."""
        pages = obstore.list(self._reads, folder or None, offset=after, chunk_size=PAGE)
        last = ""
        while True:
            try:
                page = self._ask_list(folder, lambda: next(pages, None))
            except _UnlistableName as failure:
                yield from self._own_pages(folder, after, last, str(failure))
                return
            if page is None:
                return
            if page:
                self._clock.observe(max(meta["last_modified"] for meta in page))
            # Consoles mark a folder by an object `folder/`.
            below: Sequence[Mapping[str, Any]] = [meta for meta in page if meta["path"] != folder]
            for meta in below:
                _check_below(meta["path"], folder)
            if self.list_order == "keys":
                below, last = _in_order(below, last)
            elif below:
                last = below[-1]["path"]
            yield ListedPage([self._described(meta) for meta in below], more=len(page) == PAGE)

    def _own_pages(self, folder: str, after: str | None, seen: str, name: str) -> Iterator[ListedPage]:
        """The pages after `seen`, the last key that was listed, without `name` and others that the client cannot list.

        A server that lists folder by folder reads "after `a`" as "after the folder `a`": so that folder is listed
        first.
        Cost: 1 LIST a page; with `list_order` "folders" 1 more if `seen` is not empty.
        """
        starts = [(folder, seen or after)]
        if seen and self.list_order == "folders":
            starts.insert(0, (seen, None))
        last = seen
        for below, start in starts:
            for page in self._raw_pages(below, start, name):
                listed = self._listable(page.objects, folder)
                if self.list_order == "keys":
                    listed, last = _in_order(listed, last)
                if listed:
                    self._clock.observe(max(meta["last_modified"] for meta in listed))
                    more = page.token is not None or below != folder
                    yield ListedPage([self._described(meta) for meta in listed], more=more)

    def _listable(self, objects: Sequence[Mapping[str, Any]], folder: str) -> Sequence[Mapping[str, Any]]:
        """The objects that the client could have listed, without the store's prefix. A warning for each other one."""
        found: list[Mapping[str, Any]] = []
        for meta in objects:
            path = self._relative(meta["path"])
            if path == inside(folder):
                continue
            _check_below(path, folder)
            if not s3_list.is_refused(path):
                found.append({**meta, "path": path})
            elif not path.endswith("/") or s3_list.is_refused(path[:-1]):
                self._warn_refused(path)
        return found

    def _relative(self, key: str) -> str:
        _check_below(key, self._place.prefix)
        return key[len(inside(self._place.prefix)) :]

    def _warn_refused(self, path: str) -> None:
        if path not in self._warned and len(self._warned) < 100:
            self._warned.add(path)
            what = f"{self._place}: passed over the object {path!a}, which costs a request more at each listing"
            _log.warning("%s; %s", what, _REMOVE)

    def _raw_pages(
        self, folder: str, after: str | None, name: str, *, by_folder: bool = False
    ) -> Iterator[s3_list.RawPage]:
        above = inside(self._place.prefix)
        what = f"list {folder or 'the bucket'}" + (f" past {name}" if name else "")
        token: str | None = None
        while True:
            start = None if after is None else above + after
            query = s3_list.page_query(above + inside(folder), after=start, token=token, by_folder=by_folder)
            page = self._raw_page(what, query, _REMOVE if name else None)
            yield page
            if page.token is None:
                return
            token = page.token

    def _raw_page(self, what: str, query: str, hint: str | None) -> s3_list.RawPage:
        url = self._read(what, lambda: self._sign(query))
        try:
            status, data = s3_list.fetch(url, self._runtime)
            if status == 200:
                return s3_list.parse(data)
        except (OSError, ValueError) as error:
            raise Unavailable(f"{what}: {_one_line(str(error))}", hint=hint) from None
        answer = read_answer(f"status code: {status}\n{data[: LINE_MAX * 10].decode(errors='replace')}")
        raise self._refusal(what, OSError(), answer) or Unavailable(f"{what}: {answer.line}", hint=hint)

    def _sign(self, query: str) -> str:
        """The URL of a GET of the bucket itself, signed by the client library with the credentials that it has.

        The library signs URLs of objects only, and uses an endpoint unchanged. So the query is appended to the
        endpoint, and ends in a parameter that takes the object's name as its value: S3 ignores parameters that begin
        with `x-`.
        """
        place = replace(self._place, prefix="")
        if self._bucket_url is None:
            keys = {"access_key_id": "-", "secret_access_key": "-"}
            unsigned = _client(replace(place, options={**place.options, **keys}, profile=None), _READ, max_retries=0)
            self._bucket_url = obstore.sign(unsigned, "GET", "-", _SIGNED).partition("?")[0].removesuffix("/-")
        url = f"{self._bucket_url}?{query}"
        if str(place.options.get("skip_signature")).lower() == "true":
            return url
        options = {**place.options, "endpoint": f"{url}&x-limpet=", "virtual_hosted_style_request": "true"}
        return obstore.sign(_client(replace(place, options=options), _READ, max_retries=3), "GET", "-", _SIGNED)

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """In a prefix of several pages, each call returns objects of the next page; after the last comes the first. The
        first call skips ahead at random, so that processes start at different pages. It does not start at a random
        text, since names that contain a time all begin alike.
        """
        folder = check_prefix(prefix)
        start = self._walked.pop(folder, None)
        first = None if start else self._page(folder, None)
        if first and start is None and first.more:
            start = key_between([stat.key for stat in first.objects], 2.0 ** self._runtime.rng.uniform(0.0, JUMP_MAX))
        page = last = self._page(folder, start) if start else first or ListedPage((), more=False)
        found = page.objects
        if start and len(found) < n:
            first = first or self._page(folder, None)
            found = [*{stat.key: stat for stat in [*found, *first.objects]}.values()]
            last = last if last.more else first
        if start or last.more:
            self._walked[folder] = last.objects[-1].key if last.more else ""
        return self._runtime.rng.sample(found, min(n, len(found)))

    def _page(self, folder: str, after: str | None) -> ListedPage:
        return next((page for page in self._pages(folder, after) if page.objects), ListedPage((), more=False))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """A server with real folders may list one for minutes after it has become empty. Cost: twice the LISTs if a
        name is one that the client library refuses."""
        folder = check_prefix(prefix)
        try:
            found = self._ask_list(folder, lambda: obstore.list_with_delimiter(self._reads, folder or None))
        except _UnlistableName as failure:
            raw = self._raw_pages(folder, None, str(failure), by_folder=True)
            return sorted({name for page in raw for name in self._folder_names(page, folder)})
        return sorted(path.rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def _folder_names(self, page: s3_list.RawPage, folder: str) -> Iterator[str]:
        self._listable(page.objects, folder)
        for each in page.folders:
            path = self._relative(each).removesuffix("/")
            _check_below(path, folder)
            if s3_list.is_refused(path):
                self._warn_refused(path + "/")
            else:
                yield path.rsplit("/", 1)[-1]

    def _ask_list(self, folder: str, call: Callable[[], T]) -> T:
        """A request for a listing.   Raises: _UnlistableName if it fails for a name, and `s3_list` can be used
        instead."""
        _refuse_fork()
        try:
            return call()
        except _FAILURES as error:
            text = str(error)
            is_name = isinstance(error, InvalidPathError) or "invalid list response" in text
            if is_name and self._place.scheme == "s3":
                raise _UnlistableName(_name_in(text)) from None
            raise self._failure(f"list {folder or 'the bucket'}", error, read_answer(text)) from None

    def _stat(self, meta: Mapping[str, Any]) -> Stat:
        self._clock.observe(meta["last_modified"])
        return self._described(meta)

    def _described(self, meta: Mapping[str, Any]) -> Stat:
        version = (self._by_generation and meta["version"]) or _quoted(meta["e_tag"])
        return Stat(Key(meta["path"]), meta["size"], Version(version), meta["last_modified"])

    def _read(self, what: str, call: Callable[[], T]) -> T:
        _refuse_fork()
        try:
            return call()
        except _FAILURES as error:
            raise self._failure(what, error, read_answer(str(error))) from None

    def _failure(self, what: str, error: Exception, answer: Answer) -> LimpetError:
        """The error of a request that changes nothing, or can be repeated."""
        if isinstance(error, NotModifiedError):
            return NotModified(f"{what}: still that version")
        if isinstance(error, PreconditionError):
            return Conflict(f"{what}: no longer that version")
        if answer.status == 416:
            return Invalid(f"{what}: the range starts past the end")
        if isinstance(error, InvalidPathError):
            hint = f"{_REMOVE}, and nothing beside it can be listed here"
            return Unavailable(f"{what}: the client cannot list the object {_name_in(str(error))}", hint=hint)
        return self._refusal(what, error, answer) or Unavailable(f"{what}: {answer.line}")

    def _put_failed(self, key: Key, when: When, error: Exception) -> LimpetError:
        answer = read_answer(str(error))
        what = f"put {key}"
        lost = isinstance(error, AlreadyExistsError | PreconditionError)
        no_object = isinstance(error, FileNotFoundError) and not answer.no_bucket
        if no_object and isinstance(when, Absent):  # a 404 to a create is no answer of S3's: perhaps a proxy's
            return OutcomeUnknown(f"{what}: {answer.line}")
        gone = no_object and isinstance(when, Match)  # F7
        if (lost or gone) and not answer.no_bucket:
            if isinstance(when, Always):
                return Unavailable(f"{what}: {answer.line}")
            return Conflict(f"{what}: {'it exists' if isinstance(when, Absent) else 'it is no longer that version'}")
        unclear = OutcomeUnknown if answer.sent else Unavailable
        return self._refusal(what, error, answer) or unclear(f"{what}: {answer.line}")

    def _refusal(self, what: str, error: Exception, answer: Answer) -> LimpetError | None:
        """The error of a request that the server refused; None if a retry may succeed."""
        if answer.credentials:
            if answer.status >= 500:
                return None
            return Denied(f"{what}: no credentials were found", hint=_CREDENTIALS_HINT[self._place.scheme])
        if isinstance(error, FileNotFoundError) or answer.status == 404:
            if answer.no_bucket or what.startswith(("put", "list")):
                bucket = f"{self._place.scheme}://{self._place.bucket}"
                return Invalid(f"{what}: there is no bucket {bucket}", hint="check its name and region, or create it")
            return Missing(f"there is no object {what.partition(' ')[2]}")
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if denied or answer.status in (401, 403) or answer.code in ("AccessDenied", *_BAD_CREDENTIALS):
            return Denied(f"{what}: {answer.line}")
        if "redirect" in answer.line or answer.code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
            return Invalid(f"{what}: the bucket is in another region", hint="set AWS_REGION, or ?region=... in the URL")
        if answer.status == 501:
            return Unsupported(f"{what}: {answer.line}", hint="use a server that has conditional puts")
        passing = answer.status in (408, 409, 412, 425, 429) or answer.code == "RequestTimeout"
        if 400 <= answer.status < 500 and not passing:
            return Invalid(f"{what}: {answer.line}", hint="check endpoint, region and bucket")
        return None


def _client(place: Place, client_options: Mapping[str, str], *, max_retries: int) -> Any:
    global _clients_of
    _refuse_fork()
    _clients_of = os.getpid()
    settings: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": {**client_options, "allow_http": (place.endpoint or "").startswith("http://")},
        "retry_config": {"max_retries": max_retries},
        **place.options,
    }
    try:
        if place.profile is not None:
            session = boto3_session(place.profile)
            settings["credential_provider"] = import_module("obstore.auth.boto3").Boto3CredentialProvider(session)
        match place.scheme:
            case "s3":
                # One DELETE each: DeleteObjects answers 200 with the errors inside (F20), and not every server has it.
                return S3Store(place.bucket, disable_bulk_delete=True, **settings)
            case "gs":
                return GCSStore(place.bucket, **settings)
            case _:
                return AzureStore(place.bucket, **settings)
    except (BaseError, ValueError, TypeError) as error:
        raise Invalid(f"{place}: {read_answer(str(error)).line}", hint="check the URL and the options") from None


class _UnlistableName(Exception):
    """The client library cannot list the object of that name (empty if it does not say which); `s3_list` can."""


def _name_in(text: str) -> str:
    """The object that the client library's error names, escaped; empty if it names none."""
    path = _PATH.search(text)
    return _one_line(path[1]) if path else ""


def _in_order(metas: Sequence[Mapping[str, Any]], last: str) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The objects of a page after the key `last`, and the page's last key.   Raises: Unsupported if not in key order.

    The client library lists `a/`, which consoles create to show a folder, as `a`, after `a-b`. It is left out.
    """
    found = []
    for meta in metas:
        path = meta["path"]
        if path > last:
            found.append(meta)
        elif (path := path + "/") <= last:
            raise Unsupported(
                f"the server lists {meta['path']} behind {last}: not in key order",
                hint="name the server in the URL (?endpoint=...), then Limpet restores the order",
            )
        last = path
    return found, last


def _check_below(path: str, folder: str) -> None:
    """Check that a listed key is below the folder: callers may delete what was listed.   Raises: Unsupported."""
    if folder and not path.startswith(folder + "/"):
        raise Unsupported(f"the server lists {path!r} below {folder}", hint="use another server; see `limpet doctor`")


def _quoted(e_tag: str | None) -> str:
    """The ETag with its quotes, which Azure omits in listings."""
    return f'"{e_tag}"' if e_tag and not e_tag.endswith('"') else e_tag or ""


# ---- the facts in an error text of the client ----

LINE_MAX = 200

_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Za-z -]+))?")
_CODE = re.compile(r"<Code>([^<]*)</Code>|\(code: (\w+)\)")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>|failed for key .*?: (.*?) \(code: ")
_SERVER = re.compile(r"Error performing [A-Z]+ (https?://)(?:[^/@\s]*@)?([^/\s]+)")
_REASON = re.compile(r'(?:message|error): "([^"]+)"|(InvalidCertificate\(\s*\w+|TimedOut)')
_KIND = re.compile(r"kind: (Connect|Timeout)\b")
_PAST_END = re.compile(r'Wanted range starting at|CONTENT_RANGE header: "bytes 0--1/0"')  # Azure; Azurite
_PATH = re.compile(r'path: "((?:[^"\\]|\\.)*)"')
_CREDENTIALS = re.compile(r"http://169\.254\.|metadata\.google\.internal|/latest/meta-data|/latest/api/token")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an error text says. `status` is 0 if there was no HTTP answer; `sent` is False if the request cannot have
    reached the server; `credentials` is True if the credentials could not be fetched.
    """

    status: int
    code: str
    line: str
    sent: bool
    credentials: bool

    @property
    def no_bucket(self) -> bool:
        """Whether the bucket does not exist, rather than the object."""
        return self.code in ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted")


def read_answer(text: str) -> Answer:
    """The facts in the client's error text."""
    status, code, message, kind = (found.search(text) for found in (_STATUS, _CODE, _MESSAGE, _KIND))
    number = int(status[1]) if status else 416 if _PAST_END.search(text) else 0
    name = (code[1] or code[2]) if code else ""
    if status:
        said = (message[1] or message[2]) if message else ""
        line = " ".join(filter(None, [status[1], name or (status[2] or "").strip()])) + (f": {said}" if said else "")
    elif code:
        line = name + (f": {message[1] or message[2]}" if message else "")
    elif kind:
        found = _SERVER.search(text)
        server = f"{found[1]}{found[2]}" if found else "the server"
        line = f"{server} did not answer in time"
        if kind[1] == "Connect":
            reason = _REASON.search(text)
            why = (reason[1] or reason[2]) if reason else ""
            line = f"{server} cannot be reached" + (f": {why}" if why else "")
    else:
        line = text.partition("\n")[0].rpartition(" - ")[2].removeprefix("HTTP error: ")
    unreachable = bool(kind and kind[1] == "Connect")
    credentials = bool(_CREDENTIALS.search(text))
    return Answer(number, name, _one_line(line), sent=not (unreachable or credentials), credentials=credentials)


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."
