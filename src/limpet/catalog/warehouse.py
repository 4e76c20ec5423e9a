"""The warehouse: the locations of table data and metadata, and which locations a client may name.

Clients read and write table data directly, with URLs from the catalog. So every URL that a client sends is checked
before anything is written: it must be in this warehouse (F29, F30).

The name of a metadata file contains the SHA-256 digest of its bytes, and the catalog's entry has the name: so metadata
is compared with what was committed (F23). Files of version 0.1 have no digest in their names.

What is in the metadata is a matter of `limpet.catalog.iceberg`.
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

from limpet.catalog.names import Namespace, slug
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Denied, Invalid, Missing, Unavailable
from limpet.kernel.keys import Key, check, check_path, disk_name
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Put, Stat, Store
from limpet.kernel.store.directory.files import failure
from limpet.kernel.store.directory.plain import PlainFiles
from limpet.kernel.wording import many

WAREHOUSE = "warehouse"
METADATA_BYTES_MAX = 64 << 20
DATA_BYTES_MAX = 1 << 30
CACHE_BYTES_MAX = 64 << 20
IN_MEMORY = 8
"""Approximate bytes in memory for a byte of metadata, once it is decoded."""
PATH_CHARACTERS_MAX = 100
FILES_AT_ONCE = 1000
NAME_CHARACTERS_MAX = 1024
VALUE_CHARACTERS_MAX = 1 << 20
PROPERTIES_MAX = 10_000

_ODD = re.compile(r"[%?#\\*\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ODD_IN_DATA = re.compile(_ODD.pattern.replace("%", ""))
_NUMBER = re.compile(r"v?(\d{1,9})[-.]")
_DIGEST = re.compile(r"\d{5,}-([0-9a-f]{64})\.metadata\.json")
_ONE_SLASH = re.compile("file:/(?!/)")
_DOTS, _MARKS = re.compile("[.-]"), re.compile("[._-]")
_PLACES = frozenset(("path", "location", "dir", "directory", "folder", "warehouse"))
_STORAGES = frozenset(
    ("s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "wasb", "wasbs", "adl", "adls", "file", "hdfs", "oss",
     "cos", "r2", "memory")
)  # fmt: skip
_CLIENTS = ("s3.", "gcs.", "adls.", "hf.", "hdfs.", "fs.", "client.", "rest.", "signer.", "header.")
_SECRETS = frozenset(("impl", "uri", "token", "credential"))

Json = dict[str, Any]


class Document:
    """The bytes of a metadata file, with its cached JSON.

    It is immutable: the metadata of the next commit shares most of it. `table`: that of a table with every field of its
    version; None if it was not checked yet (`limpet.catalog.iceberg.tables.whole`).
    """

    __slots__ = ("_digest", "_json", "data", "table")

    def __init__(self, data: bytes, json: dict[str, Any] | None = None) -> None:
        self.data = data
        self.table: Json | None = None
        self._json = json
        self._digest: str | None = None

    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        if self._digest is None:
            self._digest = records.digest_of(self.data)
        return self._digest

    def json(self) -> dict[str, Any]:
        """The metadata as JSON; only for bytes that are known to be an object (checked by `Warehouse.read`)."""
        if self._json is None:
            found: dict[str, Any] = msgspec.json.decode(self.data)
            self._json = found
        return self._json


class Warehouse:
    """Metadata files by key, their URLs for clients, and a cache of the newest ones.

    `base_url`: the root of `store` for clients: a path, `file:///...` or `s3://bucket/prefix`.
    """

    def __init__(self, store: Store, base_url: str, runtime: Runtime) -> None:
        self.store = store
        self.runtime = runtime
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
        """A new path for a table: readable, and unique by a random part.

        It is in the folder of its namespace (`location`, if that has one), unless a table owns that folder.
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

        Raises: Invalid unless it is inside this warehouse, and on a disk reached without links.
        """
        path = self.path_of(url, what)
        if self._folder is not None:
            if any(disk_name(part, leaf=False) != part for part in path.split("/")):
                raise Invalid(
                    f"the {what} {url!r} has characters that are not allowed in names of folders",
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
        self.path_of(url, "metadata location")
        if self._folder is not None and disk_name(name, leaf=True) != name:
            raise Invalid(
                f"the metadata location {url!r} is not a valid file name", hint="it must end in .metadata.json"
            )
        return path

    def check_properties(self, properties: Mapping[str, Any]) -> dict[str, str]:
        """The folders in properties, as paths by property.

        Checked are properties that are named like a path, location or folder, values that look like the URL of a store,
        and properties that would make a client use another store, or run code.   Raises: Invalid.
        """
        if len(properties) > PROPERTIES_MAX:
            raise Invalid(
                f"{many(len(properties), 'property', 'properties')}; at most {PROPERTIES_MAX} are allowed at once"
            )
        places: dict[str, str] = {}
        for key, value in properties.items():
            text = property_text(key, value)
            name = key.strip().lower()
            if name.startswith(_CLIENTS) or _DOTS.split(name)[-1] in _SECRETS:
                raise Invalid(f"the property {key!r} configures access to files", hint="set it in the client instead")
            if _MARKS.split(key.rstrip().lower())[-1] in _PLACES or is_url(text):
                places[key] = self.root_of(text, f"property {key}")
        return places

    def canonical(self, url: str) -> str:
        """A URL in canonical form: `file:/x`, as Java and Hadoop write it, is `file:///x`.

        Other forms are not equivalent: `s3a:` and `s3n:` use other credentials and settings.
        """
        if self._folder is not None and _ONE_SLASH.match(url):
            return f"file://{url[5:]}"
        return url

    def path_of(self, url: object, what: str) -> str:
        """The path below the warehouse of what a client names; `what` is for errors.   Raises: Invalid."""
        return self._path(url, what, _ODD, check)

    def data_path(self, url: object, what: str = "file") -> str:
        """The path below the warehouse of a file that a manifest names, for `data`.

        Engines write the values of a partition into the path, and encode them first (`city=S%C3%A3o`): a `%` is a
        character of the name, for them and here, and nothing is decoded.   Raises: Invalid, as `path_of`.
        """
        return self._path(url, what, _ODD_IN_DATA, check_path)

    def _path(self, url: object, what: str, odd: re.Pattern[str], check_key: Callable[[str], object]) -> str:
        if not isinstance(url, str):
            raise Invalid(f"the {what} must be a string")
        whole = self.canonical(url).rstrip("/")
        path = whole.removeprefix(f"{self.url}/")
        if path == whole or not path:
            raise Invalid(f"the {what} {_cut(url)} is not inside the warehouse", hint=f"it begins with {self.url}/")
        if odd.search(path):
            raise Invalid(f"the {what} {url!r} has characters that programs read in different ways")
        try:
            check_key(f"{WAREHOUSE}/{path}")
        except Invalid as error:
            raise Invalid(f"the {what} {url!r} cannot be used: {error}") from None
        return path

    def make_folder(self, root: str) -> None:
        """In a directory, create the metadata folder of a staged table: DuckDB writes there without creating it.

        Raises: Denied; Unavailable.
        """
        if self._folder is not None:
            with _explained(f"make a folder for {root}"), self._files.folder(f"{WAREHOUSE}/{root}/metadata", make=True):
                pass

    # ---- metadata files ----

    def new_file(self, folder: str, before: str | None, document: Document) -> str:
        """The path of a table's next metadata file, in `folder`; `before`: the path of the last one.

        Equal bytes have the same name: writing them again does not change the file.
        """
        found = _NUMBER.match(before.rpartition("/")[2]) if before else None
        number = int(found[1]) + 1 if found else 0
        return f"{folder}/{number:05d}-{document.digest()}.metadata.json"

    def put_of(self, path: str, document: Document) -> Put:
        """The write that creates a metadata file."""
        return Put(_key(path), document.data, Absent())

    def cached(self, path: str) -> Document | None:
        """A metadata file, if it is cached."""
        with self._mutex:
            found = self._cache.get(path)
            if found is not None:
                self._cache.move_to_end(path)
            return found

    def read(self, path: str) -> Document:
        """A metadata file of the catalog, with the committed bytes.

        Raises: Corrupt, also if its bytes were changed.   Cost: 1 GET; 0 if it is cached.
        """
        found = self.cached(path)
        if found is None:
            try:
                found = self.fetch(path)
            except (Missing, Invalid) as error:
                raise Corrupt(f"the metadata of a table cannot be read: {error}") from None
            self.keep(path, found)
        return found

    def fetch(self, path: str) -> Document:
        """A metadata file as it is stored now.

        Raises: Missing; Corrupt if it does not match the digest in its name; Invalid unless it is a JSON object without
        duplicate names.   Cost: 1 GET.
        """
        wanted = _DIGEST.fullmatch(path.rpartition("/")[2])
        if wanted is None:
            return self.fetch_foreign(path)
        document = Document(self._bytes(path))
        if document.digest() != wanted[1]:
            raise Corrupt(
                f"{path} was modified since it was committed: its digest differs",
                hint="another program rewrote it: restore the file from a backup, or roll the table back",
            )
        return document

    def fetch_foreign(self, path: str) -> Document:
        """A metadata file that another program may have written.   Raises, cost: as `fetch`, without the digest."""
        data = self._bytes(path)
        return Document(data, _strict_object(path, data))

    def _bytes(self, path: str) -> bytes:
        try:
            return self.store.get(_key(path), size_max=METADATA_BYTES_MAX).data
        except Corrupt as error:
            raise Invalid(f"{path} cannot be read: {error}") from None

    def has_digest(self, path: str) -> bool:
        """Whether the name of a metadata file contains its digest; those of version 0.1 do not."""
        return _DIGEST.fullmatch(path.rpartition("/")[2]) is not None

    def etag(self, path: str) -> str:
        """The ETag of a version of a table."""
        return hashlib.sha256(self.location(path).encode()).hexdigest()[:32]

    def keep(self, path: str, document: Document) -> None:
        """Cache a metadata file, under its unique path."""
        with self._mutex:
            old = self._cache.pop(path, None)
            self._cached_bytes += _weight(document) - (_weight(old) if old else 0)
            self._cache[path] = document
            while self._cached_bytes > CACHE_BYTES_MAX and len(self._cache) > 1:
                self._cached_bytes -= _weight(self._cache.popitem(last=False)[1])

    def forget(self, root: str) -> None:
        """Remove the files below a path from the cache."""
        with self._mutex:
            for path in [path for path in self._cache if path.startswith(f"{root}/")]:
                self._cached_bytes -= _weight(self._cache.pop(path))

    # ---- files of clients ----

    def data(self, path: str, *, size_max: int) -> bytes:
        """A file that a client wrote.   Raises: Missing; Corrupt beyond `size_max`; Denied; Unavailable.

        In a directory it is read directly, without following a link: clients use file names that are not valid keys.
        Cost: 1 GET.
        """
        if self._folder is None:
            return self.store.get(_key(path), size_max=size_max).data
        try:
            with _explained(f"read {path}"), open(self._files.read(f"{WAREHOUSE}/{path}"), "rb") as file:
                found = file.read(size_max + 1)
        except Unavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise Missing(f"there is no file {path}") from None
            raise
        if len(found) > size_max:
            raise Corrupt(f"{path} has more than the {many(size_max, 'byte')} that it may have")
        return found

    def stats_in(self, root: str) -> Iterator[Stat]:
        """The files below a path; links are left out.   Raises: Denied; Unavailable.   Cost: 1 LIST per 1,000."""
        if self._folder is None:
            yield from self.store.list(f"{WAREHOUSE}/{root}")
            return
        with _explained(f"read the folder of {root}"):
            yield from self._files.stats(f"{WAREHOUSE}/{root}")

    # ---- purging ----

    def files_in(self, root: str) -> list[str]:
        """Up to 1,000 files below a path, for `delete`.   Raises: Denied; Unavailable.   Cost: 1 LIST.

        In a directory they are listed directly: clients use file names that are not valid keys.
        """
        if self._folder is None:
            return [stat.key for stat in islice(self.store.list(f"{WAREHOUSE}/{root}"), FILES_AT_ONCE)]
        if not root:
            raise Denied("the warehouse itself is not the folder of a table; nothing was deleted")
        with _explained(f"read the folder of {root}"):
            return [file.path for file in islice(self._files.walk(f"{WAREHOUSE}/{root}"), FILES_AT_ONCE)]

    def delete(self, files: Sequence[str]) -> None:
        """Delete exactly these files.   Raises: Denied; Unavailable.   Cost: 1 DELETE each."""
        if self._folder is None:
            for failed in self.store.delete_many(Key(file) for file in files).values():
                if failed is not None:
                    raise failed
            return
        for file in files:
            with _explained(f"delete {file}"):
                self._files.delete(file)

    def prune(self, root: str) -> None:
        """In a directory, remove empty folders.   Raises: Denied; Unavailable."""
        if self._folder is not None:
            with _explained(f"prune the folder of {root}"):
                self._files.prune(f"{WAREHOUSE}/{root}")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Convert an OSError of the block.   Raises: Denied, also for a symbolic link in the path; Unavailable."""
    try:
        yield
    except OSError as error:
        raise failure(f"could not {what}", error) from error


def _folder(base_url: str) -> str | None:
    """The warehouse's folder below a URL or path; None for a bucket.   Raises: Invalid."""
    if "://" in base_url and not base_url.startswith("file://"):
        return None
    path = unquote(urlsplit(base_url).path) if "://" in base_url else base_url
    if "%" in path:
        raise Invalid(
            f"tables cannot be stored below {path!r}: some clients decode the % in a path, and others do not",
            hint="use a folder without % in its path",
        )
    return f"{os.path.abspath(path)}/{WAREHOUSE}"


def property_text(key: object, value: object) -> str:
    """A property as text.   Raises: Invalid."""
    if not isinstance(key, str) or not isinstance(value, str | int | float):
        raise Invalid(f"the property {_cut(key)} must be a string")
    if len(key) > NAME_CHARACTERS_MAX:
        raise Invalid(f"the name of a property has at most {NAME_CHARACTERS_MAX} characters, not {len(key)}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > VALUE_CHARACTERS_MAX:
        raise Invalid(f"the property {key!r} has more than {VALUE_CHARACTERS_MAX} characters")
    return text


def property_texts(properties: object) -> dict[str, str]:
    """Properties as text.   Raises: Invalid."""
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    return {key: property_text(key, value) for key, value in properties.items()}


def is_url(text: str) -> bool:
    """Whether a value looks like the URL of a store."""
    scheme, colon, _ = text.lstrip()[:16].partition(":")
    return bool(colon) and scheme.lower() in _STORAGES


def _strict_object(path: str, data: bytes) -> dict[str, Any]:
    """The JSON of a file without a digest. Duplicate names are refused: programs read them differently (F30)."""
    try:
        found = records.parse_json(data, what=path, bytes_max=METADATA_BYTES_MAX)
    except Invalid as error:
        raise Invalid(f"{path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise Invalid(f"{path} is not a JSON object")
    return found


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _weight(document: Document) -> int:
    return IN_MEMORY * len(document.data)


def _key(path: str) -> Key:
    return Key(f"{WAREHOUSE}/{path}")
