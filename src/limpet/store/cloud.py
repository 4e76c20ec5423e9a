"""A prefix of a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NoReturn, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from limpet.errors import (
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
from limpet.keys import Key, check, check_prefix
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime, system
from limpet.store.api import Absent, Always, Blob, Match, Stat, Store, Version, When, check_size
from limpet.store.credentials import Place, locate
from limpet.store.listing import PAGE, in_key_order, place

T = TypeVar("T")

LARGE_BYTES = 1 << 20
JUMP_MAX = 10.0

_CLIENT = {"connect_timeout": "5s", "pool_idle_timeout": "10s"}
# A read may be long but not silent. A put counts as silent while it uploads, so a large one gets 64 MiB at 1 Mbit/s.
_READ = {**_CLIENT, "timeout": "1h", "read_timeout": "30s"}
_SMALL_PUT = {**_CLIENT, "timeout": "30s"}
_LARGE_PUT = {**_CLIENT, "timeout": "10m"}

_BAD_CREDENTIALS = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthenticationFailed")
_CREDENTIALS_HINT = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

FULL = PAGE - 1
"""So many objects make a full page, since the mark of the folder itself may be one more."""

_FAILURES = (BaseError, OSError)

_clients_made = False
_forked = False


def _after_fork() -> None:
    """The client's own threads do not survive a fork: a request of the child would never end."""
    global _forked
    _forked = _clients_made


os.register_at_fork(after_in_child=_after_fork)


def _refuse_fork() -> None:
    if _forked:
        raise Unsupported(
            "a bucket was opened before this process was forked, and its client does not survive that",
            hint='open it only after the fork, or start processes with multiprocessing.set_start_method("spawn")',
        )


class CloudStore(Store):
    """Objects below a bucket's prefix: `s3://bucket/prefix?endpoint=http://host:port&region=us-east-1`, `gs://`, `az://`.

    `options` are the client's own settings and win over URL, environment and profile. Versions are ETags; on Google
    Cloud they are generations, except in listings, which do not tell them.

    `etag_style`: how If-Match is sent with a put. Ceph RGW wants the ETag without its quotes; `probe` finds out.
    `list_order`: "keys" for servers that list in key order; "folders" for those that may walk folders, where the order
    is restored (see `listing`). The clouds' own servers are known, another endpoint is taken to walk.

    A put is sent once (F1). `Conflict` is the server's word that the condition failed, and not yet proof that somebody
    else wrote: S3's 409, by which nothing landed, reads the same (F6). `outcome` reads back to settle it.
    """

    def __init__(self, url: str, *, runtime: Runtime | None = None, options: Mapping[str, str] | None = None) -> None:
        """Check the URL and find the credentials.   Cost: nothing is sent yet."""
        super().__init__(runtime or system())
        self._place = locate(url, options)
        self._reads = _client(self._place, _READ, max_retries=3)
        self._small_puts = _client(self._place, _SMALL_PUT, max_retries=0)
        self._large_puts = _client(self._place, _LARGE_PUT, max_retries=0)
        self._by_generation = self._place.scheme == "gs"
        self._walked: dict[str, str] = {}
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
        """A failed `if_match` costs a HEAD more off S3, any `if_none_match` on Google Cloud too."""
        check(key)
        options: dict[str, Any] = {}
        if range is not None:
            if not 0 <= range[0] < range[1]:
                raise Invalid(f"the range {range[0]}..{range[1]} of {key} is not one", hint="give 0 <= start < stop")
            options["range"] = range
        if self._by_generation:
            if if_none_match is not None and self.head(key).version == if_none_match:
                raise NotModified(f"{key} is still version {if_none_match}")
            options |= {} if if_match is None else {"version": if_match}
        else:
            options |= {} if if_match is None else {"if_match": if_match}
            options |= {} if if_none_match is None else {"if_none_match": if_none_match}
        try:
            return self._read(f"get {key}", lambda: self._fetch(key, options, None if range else size_max))
        except (Missing, Conflict):
            if if_match is None or self._place.scheme == "s3":
                raise
            self.head(key)  # F7: raises Missing
            raise Conflict(f"get {key}: no longer that version") from None

    def _fetch(self, key: Key, options: Mapping[str, Any], size_max: int | None) -> Blob:
        wanted: Any = options or None  # a TypedDict that only obstore's stubs know
        result = obstore.get(self._reads, key, options=wanted)
        check_size(key, result.meta["size"], size_max)
        data = bytes(result.bytes())
        start, stop = result.range
        if len(data) != stop - start:  # F23
            raise Unavailable(f"get {key}: the server sent {len(data)} of {stop - start} bytes")
        stat = self._stat(result.meta)
        return Blob(data, stat.version, stat.modified, stat.size)

    def head(self, key: Key) -> Stat:
        check(key)
        return self._read(f"head {key}", lambda: self._stat(obstore.head(self._reads, key)))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """Also raises: Invalid, when the bucket does not exist; Unavailable, when nothing was sent."""
        check(key)
        _refuse_fork()
        client = self._small_puts if len(data) <= LARGE_BYTES else self._large_puts
        try:
            result = obstore.put(client, key, data, mode=self._mode(when), use_multipart=False)
        except _FAILURES as error:
            self._put_failed(key, when, error)
        version = result["version"] if self._by_generation else _quoted(result["e_tag"])
        if not version:
            raise Unsupported(
                f"the server gives no version for {key}", hint="use a server that answers puts with an ETag"
            )
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
        check(key)
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
        """Where the server walks folders, `in_key_order` tells the cost."""
        folder = check_prefix(prefix)
        start = check_prefix(after) if after else None
        found = (
            in_key_order(self._pages, folder, start) if self.list_order == "folders" else self._checked(folder, start)
        )
        return found if after is None else (stat for stat in found if stat.key > after)

    def _checked(self, folder: str, after: str | None) -> Iterator[Stat]:
        last = ""
        for page in self._pages(folder, after):
            for stat in page:
                if stat.key <= last:
                    raise Unsupported(
                        f"the server lists {stat.key} behind {last}: not in key order",
                        hint="name the server in the URL (?endpoint=...), then Limpet restores the order",
                    )
                last = stat.key
                yield stat

    def _pages(self, folder: str, after: str | None) -> Iterator[Sequence[Stat]]:
        pages = obstore.list(self._reads, folder or None, offset=after, chunk_size=PAGE)
        while (page := self._read(f"list {folder or 'the bucket'}", lambda: next(pages, None))) is not None:
            if page:
                self._clock.observe(max(meta["last_modified"] for meta in page))
            below = [meta for meta in page if meta["path"] != folder]  # consoles mark a folder by an object `folder/`
            for meta in below:
                _check_below(meta["path"], folder)
            yield [self._described(meta) for meta in below]

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """A prefix of more than a page is walked in a circle, one page for each call. The first call jumps ahead at
        random, so that processes spread; a random key would not do, since names that hold a time all start alike.
        """
        folder = check_prefix(prefix)
        start = self._walked.pop(folder, None)
        first = None if start else self._page(folder, None)
        if first and start is None and len(first) >= FULL:
            start = place([stat.key for stat in first], 2.0 ** self._runtime.rng.uniform(0.0, JUMP_MAX))
        found = last = self._page(folder, start) if start else first or ()
        if start and len(found) < n:
            last = first or self._page(folder, None)
            found = [*{stat.key: stat for stat in [*found, *last]}.values()]
        if start or len(last) >= FULL:
            self._walked[folder] = last[-1].key if len(last) >= FULL else ""
        return self._draw(found, n)

    def _page(self, folder: str, after: str | None) -> Sequence[Stat]:
        return next(self._pages(folder, after), ())

    def _draw(self, found: Sequence[Stat], n: int) -> Sequence[Stat]:
        return self._runtime.rng.sample(found, min(n, len(found)))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """A server with real folders may show one for minutes after it was emptied."""
        folder = check_prefix(prefix)
        found = self._read(
            f"list {folder or 'the bucket'}", lambda: obstore.list_with_delimiter(self._reads, folder or None)
        )
        return sorted(path.rsplit("/", 1)[-1] for path in found["common_prefixes"])

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
        """The failure of a request that changes nothing, or is as good repeated."""
        if isinstance(error, NotModifiedError):
            return NotModified(f"{what}: still that version")
        if isinstance(error, PreconditionError):
            return Conflict(f"{what}: no longer that version")
        if answer.status == 416:
            return Invalid(f"{what}: the range starts past the end")
        if "invalid path" in str(error):
            hint = "remove that object: no object of Limpet's has such a name, and nothing beside it can be listed"
            return Unavailable(f"{what}: {answer.line}", hint=hint)
        return self._refusal(what, error, answer) or Unavailable(f"{what}: {answer.line}")

    def _put_failed(self, key: Key, when: When, error: Exception) -> NoReturn:
        answer = read_answer(str(error))
        what = f"put {key}"
        lost = isinstance(error, AlreadyExistsError | PreconditionError)
        no_object = isinstance(error, FileNotFoundError) and not answer.no_bucket
        if no_object and isinstance(when, Absent):  # what cannot be missing: some proxy's answer, then, or a mistake
            raise OutcomeUnknown(f"{what}: {answer.line}") from None
        gone = no_object and isinstance(when, Match)  # F7
        if (lost or gone) and not answer.no_bucket:
            if isinstance(when, Always):
                raise Unavailable(f"{what}: {answer.line}") from None
            reason = "it exists" if isinstance(when, Absent) else "it is no longer that version"
            raise Conflict(f"{what}: {reason}") from None
        refusal = self._refusal(what, error, answer)
        if refusal is not None:
            raise refusal from None
        if not answer.sent:
            raise Unavailable(f"{what}: {answer.line}") from None
        raise OutcomeUnknown(f"{what}: {answer.line}") from None

    def _refusal(self, what: str, error: Exception, answer: Answer) -> LimpetError | None:
        """A definite no: the request was understood and not done. None if it may help to ask again."""
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
        if (
            400 <= answer.status < 500
            and answer.status not in (408, 409, 412, 425, 429)
            and answer.code != "RequestTimeout"
        ):
            return Invalid(f"{what}: {answer.line}", hint="check endpoint, region and bucket")
        return None


def _client(place: Place, client_options: Mapping[str, str], *, max_retries: int) -> Any:
    global _clients_made
    _refuse_fork()
    _clients_made = True
    settings: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": {**client_options, "allow_http": (place.endpoint or "").startswith("http://")},
        "retry_config": {"max_retries": max_retries},
        **place.options,
    }
    try:
        match place.scheme:
            case "s3":
                # One DELETE each: DeleteObjects answers 200 with the errors inside (F20), and not every server has it.
                return S3Store(place.bucket, disable_bulk_delete=True, **_boto3(place.profile), **settings)
            case "gs":
                return GCSStore(place.bucket, **settings)
            case _:
                return AzureStore(place.bucket, **settings)
    except (BaseError, ValueError, TypeError) as error:
        raise Invalid(f"{place}: {read_answer(str(error)).line}", hint="check the URL and the options") from None


def _boto3(profile: str | None) -> dict[str, Any]:
    if profile is None:
        return {}
    try:
        session = import_module("boto3").Session(profile_name=profile)
    except ModuleNotFoundError:
        raise Unsupported(
            f"the AWS profile {profile!r} has no static keys", hint="pip install boto3 for SSO and assumed roles"
        ) from None
    return {"credential_provider": import_module("obstore.auth.boto3").Boto3CredentialProvider(session)}


def _check_below(path: str, folder: str) -> None:
    """A key that was listed must be one that was asked for, since it may be deleted.   Raises: Unsupported."""
    if folder and not path.startswith(folder + "/"):
        raise Unsupported(f"the server lists {path!r} below {folder}", hint="use another server; see `limpet doctor`")


def _quoted(e_tag: str | None) -> str:
    """The ETag in its quotes: Azure leaves them off in listings."""
    return f'"{e_tag}"' if e_tag and not e_tag.endswith('"') else e_tag or ""


LINE_MAX = 200

_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Za-z -]+))?")
_CODE = re.compile(r"<Code>([^<]*)</Code>|\(code: (\w+)\)")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>|failed for key .*?: (.*?) \(code: ")
_SERVER = re.compile(r"Error performing [A-Z]+ (https?://)(?:[^/@\s]*@)?([^/\s]+)")
_REASON = re.compile(r'(?:message|error): "([^"]+)"|(InvalidCertificate\(\s*\w+|TimedOut)')
_KIND = re.compile(r"kind: (Connect|Timeout)\b")
_PAST_END = re.compile(r'Wanted range starting at|CONTENT_RANGE header: "bytes 0--1/0"')  # Azure; Azurite
_CREDENTIALS = re.compile(r"http://169\.254\.|metadata\.google\.internal|/latest/meta-data|/latest/api/token")


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is 0 when no HTTP answer came; `sent` is False when the request cannot have reached the server.

    `credentials` is True when it was the credentials that could not be fetched.
    """

    status: int
    code: str
    line: str
    sent: bool
    credentials: bool

    @property
    def no_bucket(self) -> bool:
        """Whether it is the bucket that is not there, rather than the object."""
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
        line = _first_line(text)
    unreachable = bool(kind and kind[1] == "Connect")
    credentials = bool(_CREDENTIALS.search(text))
    return Answer(number, name, _one_line(line), sent=not (unreachable or credentials), credentials=credentials)


def _first_line(text: str) -> str:
    line = next(iter(text.splitlines()), "")
    return line.rpartition(" - ")[2].removeprefix("HTTP error: ")


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."
