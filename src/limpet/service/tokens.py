"""Tokens: who may send requests, with which rights, in which namespaces; and where a service has its tokens from.

A service without tokens accepts only local requests (F31). Tokens come from an environment variable, a file of secrets,
or a file of named tokens (`--tokens-file`). Files are read again when they change. If the new content is not valid,
that is logged, and the last valid tokens stay in force.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Denied, Invalid
from limpet.kernel.records import Name
from limpet.kernel.runtime import Runtime
from limpet.kernel.wording import many
from limpet.service.client import API_TOKENS, check_secrets, parsed_secrets, secrets_of

Headers = Sequence[tuple[bytes, bytes]]
Right = Literal["read", "write", "metrics", "publish"]
RIGHTS: frozenset[Right] = frozenset(("read", "write", "metrics", "publish"))
DEFAULT = "default"
"""The name of a token that was configured without one."""


class TokenUnknown(Denied):
    """The request carries no token, or one that the service does not know."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: the name of its token, its rights, and the namespaces that they are limited to.

    `prefixes` are namespaces; the rights hold in them and in everything below. None: in every namespace.
    """

    name: str
    rights: frozenset[Right]
    prefixes: tuple[tuple[str, ...], ...] | None = None

    def check_right(self, right: Right) -> None:
        """Raises: Denied without the right."""
        if right not in self.rights:
            raise Denied(f"the token {self.name!r} does not have the right {right!r}", hint="")

    def check_namespaces(self, namespaces: Iterable[Sequence[str]], *, sight: bool = False) -> None:
        """Raises: Denied unless the rights hold in these namespaces; with `sight`, unless it may see them."""
        may = self.sees if sight else self.acts_in
        if not all(map(may, namespaces)):
            raise Denied(f"the token {self.name!r} has no rights in that namespace", hint="")

    def acts_in(self, namespace: Sequence[str]) -> bool:
        """Whether the rights hold in a namespace."""
        if self.prefixes is None:
            return True
        return any(tuple(namespace[: len(prefix)]) == prefix for prefix in self.prefixes)

    def sees(self, namespace: Sequence[str]) -> bool:
        """Whether a namespace is visible to the caller: it is in one of the prefixes, or an ancestor of one."""
        if self.prefixes is None:
            return True
        levels = tuple(namespace)
        return any(levels[: len(prefix)] == prefix[: len(levels)] for prefix in self.prefixes)


ANONYMOUS = Caller("", RIGHTS)
"""The caller of a service without tokens."""
TokenDigests = tuple[tuple[bytes, Caller], ...]
"""The SHA-256 digest of each token, and the caller that it identifies."""


class Tokens:
    """The tokens that a service accepts.

    A service without tokens accepts every request whose Host header names this machine. That refuses a web page in a
    local browser whose host name resolves to this machine (DNS rebinding). A POST must be JSON (`Request.json`).
    """

    def __init__(self, tokens: Sequence[str] = (), *sources: TokenDigests | Callable[[], TokenDigests]) -> None:
        fixed = tuple((digest_of(token), Caller(DEFAULT, RIGHTS)) for token in tokens)
        self._sources = [*([fixed] if fixed else ()), *sources]

    def __bool__(self) -> bool:
        return bool(self._sources)

    def authenticate(self, headers: Headers) -> Caller:
        """The owner of the token in the headers.   Raises: TokenUnknown; Denied."""
        if not self._sources:
            sent_host = (header(headers, b"host") or b"").decode("latin-1")
            if sent_host and not is_loopback(_host_in(sent_host)):
                raise Denied(
                    "this service has no tokens, so it answers only requests to localhost and 127.0.0.1",
                    hint=f"set {API_TOKENS} to serve other hosts",
                )
            return ANONYMOUS
        sent = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = sent[0].partition(b" ") if len(sent) == 1 else (b"", b"", b"")
        digest = hashlib.sha256(token.strip()).digest()
        caller: Caller | None = None
        for source in self._sources:
            for each, owner in source() if callable(source) else source:
                # all tokens are compared, in constant time, so that the duration reveals nothing
                if hmac.compare_digest(digest, each):
                    caller = owner
        if caller is None or scheme.lower() != b"bearer":
            raise TokenUnknown("the token is missing or unknown", hint="send Authorization: Bearer TOKEN")
        return caller


def header(headers: Headers, name: bytes) -> bytes | None:
    """A header by its lower-case name; the first one, if there are several."""
    for sent, value in headers:
        if sent == name:
            return value
    return None


@lru_cache(maxsize=256)
def _host_in(sent: str) -> str:
    try:
        return urlsplit(f"//{sent}").hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether an address or host name is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def digest_of(token: str) -> bytes:
    """The SHA-256 digest of a token. Only digests are stored and compared."""
    return hashlib.sha256(token.encode()).digest()


RPC_SECRET = "LIMPET_RPC_SECRET"
METRICS_TOKEN = "LIMPET_METRICS_TOKEN"
FILE_BYTES_MAX = 1 << 20
TOKENS_MAX = 1000
LOOK_EVERY_S = 1.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_GRANTS: dict[str, frozenset[Right]] = {
    "read": frozenset(("read",)),
    "write": frozenset(("read", "write")),
    "metrics": frozenset(("metrics",)),
    "admin": frozenset(("read", "write", "metrics")),
}


class WatchedFile:
    """The tokens in a file, read again when it changes. A call costs at most one `stat` per second."""

    def __init__(
        self,
        path: str,
        parse: Callable[[str], TokenDigests],
        runtime: Runtime,
        warn: Callable[[str], None],
        *,
        private: bool,
    ) -> None:
        """`private`: refuse a file that every user of the machine can read.   Raises: Invalid."""
        self._path = Path(path)
        self._parse = parse
        self._runtime = runtime
        self._warn = warn
        self._private = private
        self._mark = self._marked()
        self._known = self._read()
        self._looked_at_s = runtime.elapsed_s()

    def __call__(self) -> TokenDigests:
        """The tokens."""
        if self._runtime.elapsed_s() - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = self._runtime.elapsed_s()
            mark = self._marked()
            if mark != self._mark:
                self._mark = mark
                self._reload()
        return self._known

    def _reload(self) -> None:
        try:
            self._known = self._read()
        except Invalid as error:
            self._warn(f"{error}; the previous tokens stay in force")
        else:
            self._warn(f"{self._path} has changed: {many(len(self._known), 'token')} are in force")

    def _marked(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def _read(self) -> TokenDigests:
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(FILE_BYTES_MAX + 1)
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{self._path} cannot be read: {error}", hint="name a file that this user can read") from None
        if self._private and mode & (stat.S_IROTH | stat.S_IWOTH):
            raise Invalid(
                f"{self._path} can be read or written by every user of this machine", hint=f"chmod 600 {self._path}"
            )
        if len(data) > FILE_BYTES_MAX:
            raise Invalid(f"{self._path} has more than {FILE_BYTES_MAX} bytes")
        try:
            return self._parse(text)
        except Invalid as error:
            raise Invalid(f"{self._path}: {error}", hint=error.hint) from None


_Levels = Annotated[list[Name], msgspec.Meta(max_length=16)]


class _NamedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    rights: Annotated[list[Name], msgspec.Meta(max_length=len(RIGHTS))]
    secret: Name = ""
    sha256: Name = ""
    namespaces: Annotated[list[Name | _Levels], msgspec.Meta(max_length=1000)] | None = None


def named_tokens(text: str) -> TokenDigests:
    """The tokens in the text of a `--tokens-file`.

    It is TOML: a table `[[token]]` for each token, with its `name`, its `secret` or the `sha256` of it, its `rights`
    (read, write, metrics, admin) and, to limit them, its `namespaces` (levels joined by dots, or lists of levels).
    Several tokens may share a name, for rotation.   Raises: Invalid, never quoting a secret.
    """
    try:
        fields = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(f"it is not TOML: {error}", hint="see docs/run/serve.md") from None
    tables = fields.pop("token", [])
    if fields or not isinstance(tables, list) or not tables:
        raise Invalid("it must have [[token]] tables, and nothing else", hint="see docs/run/serve.md")
    if len(tables) > TOKENS_MAX:
        raise Invalid(f"there are more than {TOKENS_MAX} tokens")
    return tuple(_named(table, number) for number, table in enumerate(tables, 1))


def _named(table: Any, number: int) -> tuple[bytes, Caller]:
    try:
        token = records.converted(table, _NamedToken)
    except msgspec.ValidationError as error:
        raise Invalid(f"token {number}: {error}") from None
    if not _NAME.fullmatch(token.name) or token.name == DEFAULT:
        raise Invalid(f"token {number}: a name is 1 to 64 letters, digits, . _ @ -, and not {DEFAULT!r}")
    unknown = [right for right in token.rights if right not in _GRANTS]
    if unknown or not token.rights:
        raise Invalid(f"token {token.name!r}: rights are a list of {', '.join(_GRANTS)}")
    if token.namespaces is not None and "admin" in token.rights:
        raise Invalid(
            f"token {token.name!r}: admin cannot be limited to namespaces", hint="give it read or write instead"
        )
    rights = frozenset(right for granted in token.rights for right in _GRANTS[granted])
    return _digest_in(token), Caller(token.name, rights, _prefixes_in(token))


def _digest_in(token: _NamedToken) -> bytes:
    if bool(token.secret) == bool(token.sha256):
        raise Invalid(f"token {token.name!r}: give either a secret or its sha256")
    if token.sha256:
        if not re.fullmatch("[0-9a-fA-F]{64}", token.sha256):
            raise Invalid(f"token {token.name!r}: a sha256 has 64 hexadecimal digits")
        return bytes.fromhex(token.sha256)
    check_secrets([token.secret], f"token {token.name!r}")
    return digest_of(token.secret)


def _prefixes_in(token: _NamedToken) -> tuple[tuple[str, ...], ...] | None:
    if token.namespaces is None:
        return None
    found = tuple(tuple(each.split(".")) if isinstance(each, str) else tuple(each) for each in token.namespaces)
    if not found or not all(prefix and all(prefix) for prefix in found):
        raise Invalid(
            f"token {token.name!r}: namespaces is a list of names", hint="leave it out to allow every namespace"
        )
    return found


def source_of(
    name: str, caller: Caller, runtime: Runtime, warn: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> TokenDigests | WatchedFile | None:
    """The tokens of `caller` in the variable `name`, or in the file that `name`_FILE names; None if neither is set.

    Raises: Invalid, see `secrets_of`.
    """
    secrets = secrets_of(name, environ)
    if not secrets:
        return None

    def parse(text: str) -> TokenDigests:
        return tuple((digest_of(secret), caller) for secret in parsed_secrets(text, name))

    path = environ.get(f"{name}_FILE", "")
    if not path:
        return parse(environ[name])
    if os.stat(path).st_mode & stat.S_IROTH:
        warn(f"{path} can be read by every user of this machine (chmod 600 {path})")
    return WatchedFile(path, parse, runtime, warn, private=False)


def check_bind(host: str, needed: Mapping[str, bool]) -> None:
    """Check that a service may listen on `host`. `needed`: by variable, whether it holds a secret.

    Raises: Invalid if other machines can reach the address and a secret is missing.
    """
    if is_loopback(host):
        return
    missing = [name for name, given in needed.items() if not given]
    if missing:
        raise Invalid(
            f"{host} can be reached from other machines, and {' and '.join(missing)} is not set",
            hint="set it, or listen on 127.0.0.1",
        )
