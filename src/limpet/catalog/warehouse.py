"""The warehouse: where table data and metadata lie, and which locations a client may name.

Clients read and write table data by themselves, with URLs that the catalog hands out. So every URL that a client sends
is checked before anything is written: it must lie in this very warehouse (F29, F30).

The name of a metadata file holds the SHA-256 digest of its bytes, and the catalog's entry names the file: what is
served was compared with what was committed (F23). Files that version 0.1 wrote have no digest in their names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from limpet import records
from limpet.catalog.state import Namespace, slug
from limpet.errors import Corrupt, Denied, Invalid, Missing
from limpet.keys import Key, check, disk_name
from limpet.runtime import Runtime
from limpet.store.api import Absent, Put, Store
from limpet.store.directory.files import failure
from limpet.store.directory.plain import PlainFiles

WAREHOUSE = "warehouse"
METADATA_BYTES_MAX = 64 << 20
CACHE_BYTES_MAX = 64 << 20
IN_MEMORY = 8
"""How many bytes a byte of metadata takes in memory once it is decoded, about."""
PATH_CHARACTERS_MAX = 100
FILES_AT_ONCE = 1000

NAME_CHARACTERS_MAX = 1024
VALUE_CHARACTERS_MAX = 1 << 20
PROPERTIES_MAX = 10_000

_ODD = re.compile(r"[%?#\\*\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NUMBER = re.compile(r"v?(\d{1,9})[-.]")
_DIGEST = re.compile(r"\d{5,}-([0-9a-f]{64})\.metadata\.json")
_ONE_SLASH = re.compile("file:/(?!/)")
_PLACES = frozenset(("path", "location", "dir", "directory", "folder", "warehouse"))
_STORAGES = frozenset(
    ("s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "wasb", "wasbs", "adl", "adls", "file", "hdfs", "oss",
     "cos", "r2", "memory")
)  # fmt: skip
_CLIENTS = ("s3.", "gcs.", "adls.", "hf.", "hdfs.", "fs.", "client.", "rest.", "signer.", "header.")
_SECRETS = frozenset(("impl", "uri", "token", "credential"))


class Document:
    """The bytes of a metadata file. What is made of them is kept: the JSON, and for tables PyIceberg's `model`.

    Neither is ever changed: the metadata of the next commit shares most of it. `is_plain`: whether a table is of the
    form that is updated as JSON; None if nobody has looked. Models are large, and most commits need none, so they are
    not kept in memory.
    """

    __slots__ = ("_digest", "_json", "data", "is_plain", "model")

    def __init__(self, data: bytes, json: dict[str, Any] | None = None, model: Any = None) -> None:
        self.data = data
        self.model = model
        self.is_plain: bool | None = None
        self._json = json
        self._digest: str | None = None

    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        if self._digest is None:
            self._digest = hashlib.sha256(self.data).hexdigest()
        return self._digest

    def json(self) -> dict[str, Any]:
        """The metadata as JSON; only for bytes that are known to be an object (`Warehouse.read` has looked)."""
        if self._json is None:
            found: dict[str, Any] = msgspec.json.decode(self.data)
            self._json = found
        return self._json

    def without_model(self) -> Document:
        """The same, as it is kept in memory."""
        if self.model is None:
            return self
        slim = Document(self.data, self._json)
        slim.is_plain, slim._digest = self.is_plain, self._digest
        return slim


class Warehouse:
    """Metadata files by key, the URLs that clients know them by, and the newest ones in memory.

    `base_url` is where the root of `store` is for clients: a path, `file:///...` or `s3://bucket/prefix`. `config` is
    what every client is told along with a table.
    """

    def __init__(self, store: Store, base_url: str, runtime: Runtime, config: Mapping[str, str] | None = None) -> None:
        self.store = store
        self.runtime = runtime
        self.config = dict(config or {})
        self._folder = _folder(base_url)
        self._files = PlainFiles(os.path.dirname(self._folder or "/"))
        self.url = f"file://{self._folder}" if self._folder else f"{base_url.partition('?')[0].rstrip('/')}/{WAREHOUSE}"
        self._mutex = runtime.mutex()
        self._cache: OrderedDict[str, Document] = OrderedDict()
        self._cached_bytes = 0

    # ---- locations ----

    def location(self, path: str) -> str:
        """The URL of a path below the warehouse."""
        return f"{self.url}/{path}"

    def new_root(
        self, namespace: Namespace, name: str, is_free: Callable[[str], bool], location: str | None = None
    ) -> str:
        """A path that no table ever had: readable, and unique by a part of chance.

        It lies in the folder of its namespace (`location`, if that has one), unless a table was given all of that.
        """
        folders = "/".join(slug(level) for level in namespace)[:PATH_CHARACTERS_MAX].rstrip("/-")
        if location is not None:
            folders = self.root_of(location, "location of the namespace")
        own = f"{slug(name)}-{self.runtime.rng.getrandbits(48):012x}"
        return f"{folders}/{own}" if is_free(f"{folders}/{own}") else own

    def new_uuid(self) -> str:
        """A random UUID (version 4)."""
        bits = f"{self.runtime.rng.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62:032x}"
        return f"{bits[:8]}-{bits[8:12]}-{bits[12:16]}-{bits[16:20]}-{bits[20:]}"

    def now_ms(self) -> int:
        """The time by this machine's clock, in milliseconds since 1970."""
        return int(self.runtime.wall().timestamp() * 1000)

    def root_of(self, url: str, what: str = "location") -> str:
        """The path below the warehouse of a folder that a client names.

        Raises: Invalid unless it lies below this warehouse, and on a disk has the path that its name says.
        """
        path = self._inside(url, what)
        if self._folder is not None:
            if any(disk_name(part, leaf=False) != part for part in path.split("/")):
                raise Invalid(
                    f"the {what} {url!r} has characters that limpet does not put into names of folders",
                    hint="use lower-case letters, digits, - and _",
                )
            real = os.path.realpath(f"{self._folder}/{path}")
            if real != f"{os.path.realpath(self._folder)}/{path}":
                raise Invalid(f"the {what} {url!r} leads through a link", hint="name the folder itself")
        return path

    def file_of(self, url: str) -> str:
        """The path below the warehouse of a metadata file that a client names.   Raises: Invalid."""
        folder, _, name = url.rpartition("/")
        path = f"{self.root_of(folder, 'metadata location')}/{name}"
        self._inside(url, "metadata location")
        if self._folder is not None and disk_name(name, leaf=True) != name:
            raise Invalid(
                f"the metadata location {url!r} is no file name of limpet's", hint="it ends in .metadata.json"
            )
        return path

    def check_file(self, url: object, what: str) -> None:
        """Nothing, if the file that a client names lies in the warehouse.   Raises: Invalid."""
        self._inside(url, what)

    def check_properties(self, properties: Mapping[str, Any]) -> dict[str, str]:
        """The folders that properties name, as paths by property.

        Checked is whatever is called a path, location or folder, whatever begins like the URL of a store, and what
        would tell a client to use another store, or code, than the catalog says.   Raises: Invalid.
        """
        if len(properties) > PROPERTIES_MAX:
            raise Invalid(f"there are {len(properties)} properties; at most {PROPERTIES_MAX} are taken at once")
        places: dict[str, str] = {}
        for key, value in properties.items():
            text = property_text(key, value)
            if _is_for_clients(key):
                raise Invalid(f"the property {key!r} says how files are reached", hint="set it in the client instead")
            if _is_place(key) or _is_url(text):
                places[key] = self.root_of(text, f"property {key}")
        return places

    def canonical(self, url: str) -> str:
        """A URL as this catalog writes it: `file:/x`, as Java and Hadoop write it, is `file:///x`.

        No other form is taken for the same: `s3a:` and `s3n:` reach a bucket through other credentials and settings.
        """
        if self._folder is not None and _ONE_SLASH.match(url):
            return f"file://{url[5:]}"
        return url

    def _inside(self, url: object, what: str) -> str:
        if not isinstance(url, str):
            raise Invalid(f"the {what} must be a string")
        whole = self.canonical(url).rstrip("/")
        path = whole.removeprefix(f"{self.url}/")
        if path == whole or not path:
            raise Invalid(f"the {what} {_cut(url)} is not inside the warehouse", hint=f"it begins with {self.url}/")
        if _ODD.search(path):
            raise Invalid(f"the {what} {url!r} has characters that programs read in different ways")
        try:
            check(f"{WAREHOUSE}/{path}")
        except Invalid as error:
            raise Invalid(f"the {what} {url!r} cannot be used: {error}") from None
        return path

    def make_folder(self, root: str) -> None:
        """Make the folder for the metadata of a staged table, where there are folders: DuckDB writes there at once.

        Raises: Denied; Unavailable.
        """
        if self._folder is not None:
            with _explained(f"make a folder for {root}"), self._files.folder(f"{WAREHOUSE}/{root}/metadata", make=True):
                pass

    # ---- metadata files ----

    def new_file(self, folder: str, before: str | None, document: Document) -> str:
        """The path of a table's next metadata file, in `folder`; `before` is the path of the last one.

        Equal bytes have one name: whoever writes them again writes the same file.
        """
        found = _NUMBER.match(before.rpartition("/")[2]) if before else None
        number = int(found[1]) + 1 if found else 0
        return f"{folder}/{number:05d}-{document.digest()}.metadata.json"

    def put_of(self, path: str, document: Document) -> Put:
        """The write that creates a metadata file; from now on it is in memory too, under its unique name."""
        self._keep(path, document)
        return Put(_key(path), document.data, Absent())

    def cached(self, path: str) -> Document | None:
        """A metadata file, if it is in memory."""
        with self._mutex:
            found = self._cache.get(path)
            if found is not None:
                self._cache.move_to_end(path)
            return found

    def read(self, path: str) -> Document:
        """A metadata file that the catalog names, with the bytes that were committed.

        Raises: Corrupt, also if its bytes are others.   Cost: 1 GET; 0 if it is in memory.
        """
        found = self.cached(path)
        if found is None:
            try:
                found = self.fetch(path)
            except (Missing, Invalid) as error:
                raise Corrupt(f"the catalog names metadata that cannot be read: {error}") from None
            self._keep(path, found)
        return found

    def fetch(self, path: str) -> Document:
        """A metadata file as it lies there now.

        Raises: Missing; Corrupt if it is not what its name says; Invalid unless it is a JSON object without doubled
        names.   Cost: 1 GET.
        """
        wanted = _DIGEST.fullmatch(path.rpartition("/")[2])
        if wanted is None:
            return self.fetch_foreign(path)
        document = Document(self._bytes(path))
        if document.digest() != wanted[1]:
            raise Corrupt(
                f"{path} is not what was committed: its digest differs",
                hint="another program rewrote it: restore the file from a backup, or roll the table back",
            )
        return document

    def fetch_foreign(self, path: str) -> Document:
        """A metadata file that another program may have written.   Raises, cost: as `fetch`, whatever its name says."""
        data = self._bytes(path)
        return Document(data, _strict_object(path, data))

    def _bytes(self, path: str) -> bytes:
        try:
            return self.store.get(_key(path), size_max=METADATA_BYTES_MAX).data
        except Corrupt as error:
            raise Invalid(f"{path} cannot be read: {error}") from None

    def has_digest(self, path: str) -> bool:
        """Whether the name of a metadata file holds its digest; those that version 0.1 wrote do not."""
        return _DIGEST.fullmatch(path.rpartition("/")[2]) is not None

    def etag(self, path: str) -> str:
        """What a client may remember a version of a table by."""
        return hashlib.sha256(self.location(path).encode()).hexdigest()[:32]

    def _keep(self, path: str, document: Document) -> None:
        slim = document.without_model()
        with self._mutex:
            old = self._cache.pop(path, None)
            self._cached_bytes += _weight(slim) - (_weight(old) if old else 0)
            self._cache[path] = slim
            while self._cached_bytes > CACHE_BYTES_MAX and len(self._cache) > 1:
                self._cached_bytes -= _weight(self._cache.popitem(last=False)[1])

    def forget(self, root: str) -> None:
        """Drop what is in memory of the files below a path."""
        with self._mutex:
            for path in [path for path in self._cache if path.startswith(f"{root}/")]:
                self._cached_bytes -= _weight(self._cache.pop(path))

    # ---- purging ----

    def files_in(self, root: str) -> list[str]:
        """Up to 1,000 files below a path, for `delete`.   Raises: Denied; Unavailable.   Cost: 1 LIST.

        In a directory they are files as such: clients give theirs names that the store does not know.
        """
        if self._folder is None:
            return [stat.key for stat in islice(self.store.list(f"{WAREHOUSE}/{root}"), FILES_AT_ONCE)]
        if not root:
            raise Denied("the whole warehouse is no folder of a table; nothing was deleted")
        with _explained(f"read the folder of {root}"):
            return [file.path for file in islice(self._files.walk(f"{WAREHOUSE}/{root}"), FILES_AT_ONCE)]

    def delete(self, files: Sequence[str]) -> None:
        """Delete exactly those files.   Raises: Denied; Unavailable.   Cost: 1 DELETE each."""
        if self._folder is None:
            for failed in self.store.delete_many(Key(file) for file in files).values():
                if failed is not None:
                    raise failed
            return
        for file in files:
            with _explained(f"delete {file}"):
                self._files.delete(file)

    def prune(self, root: str) -> None:
        """Remove folders that are empty, where there are folders.   Raises: Denied; Unavailable."""
        if self._folder is not None:
            with _explained(f"prune the folder of {root}"):
                self._files.prune(f"{WAREHOUSE}/{root}")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """What an OSError of the block means.   Raises: Denied, also for a link on the way; Unavailable."""
    try:
        yield
    except OSError as error:
        raise failure(f"could not {what}", error) from error


def _folder(base_url: str) -> str | None:
    """The warehouse's folder below what a URL or path names; None for a bucket.   Raises: Invalid."""
    if "://" in base_url and not base_url.startswith("file://"):
        return None
    path = unquote(urlsplit(base_url).path) if "://" in base_url else base_url
    if "%" in path:
        raise Invalid(
            f"tables cannot lie below {path!r}: some clients decode the % in a path, and others do not",
            hint="use a folder without % in its path",
        )
    return f"{os.path.abspath(path)}/{WAREHOUSE}"


def property_text(key: object, value: object) -> str:
    """A property as it is stored: always text.   Raises: Invalid."""
    if not isinstance(key, str) or not isinstance(value, str | int | float):
        raise Invalid(f"the property {_cut(key)} must be a string")
    if len(key) > NAME_CHARACTERS_MAX:
        raise Invalid(f"the name of a property has at most {NAME_CHARACTERS_MAX} characters, not {len(key)}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > VALUE_CHARACTERS_MAX:
        raise Invalid(f"the property {key!r} has more than {VALUE_CHARACTERS_MAX} characters")
    return text


def _is_place(key: str) -> bool:
    """Whether a property is called a path, location or folder."""
    name = key.rstrip().lower()
    return name[max(name.rfind(mark) for mark in "._-") + 1 :] in _PLACES


def _is_url(text: str) -> bool:
    """Whether a value begins like the URL of a store."""
    scheme, colon, _ = text.lstrip()[:16].partition(":")
    return bool(colon) and scheme.lower() in _STORAGES


def _is_for_clients(key: str) -> bool:
    """Whether a property would tell a client to use another store, or code, than the catalog says."""
    name = key.strip().lower()
    return name.startswith(_CLIENTS) or name[max(name.rfind(mark) for mark in ".-") + 1 :] in _SECRETS


def _strict_object(path: str, data: bytes) -> dict[str, Any]:
    """The JSON of a file that no digest vouches for: no name twice, which programs read in different ways (F30)."""
    try:
        found = records.parse_json(data, what=path, bytes_max=METADATA_BYTES_MAX)
    except Invalid as error:
        raise Invalid(f"{path} is not JSON that can be used: {error}") from None
    if not isinstance(found, dict):
        raise Invalid(f"{path} is not a JSON object")
    return found


def _cut(value: object) -> str:
    """For messages: what a client sent, and not all of it."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _weight(document: Document) -> int:
    return IN_MEMORY * len(document.data)


def _key(path: str) -> Key:
    return Key(f"{WAREHOUSE}/{path}")
