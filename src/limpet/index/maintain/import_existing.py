"""Importing existing record files into an index: plain US-delimited text that another program wrote.

A folder of such files may lie just where the index should be. Its shards have the names of Limpet's own, and lines that
differ from Limpet's: no escapes, no `_deleted`, in any order. So they are moved to `adopted/` there, and their records
are put into packs; the manifest is written last. Without a manifest there is no index, so half of one is never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from limpet import records
from limpet.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.index.codec.lines import UPDATED_AT, Field, Schema
from limpet.index.decide import keys_of, rank
from limpet.index.formats.api import from_text
from limpet.index.maintain.offline import WholeIndex, batches, load, put_packs
from limpet.index.storage import SHARD_BYTES_MAX, WAITING_BYTES_MAX, IndexStorage, Manifest
from limpet.index.writer import Stamps, given, stamp_in
from limpet.keys import Key, encoded, join
from limpet.store.api import Absent, Stat, Store, Version
from limpet.store.directory.files import failure
from limpet.store.directory.plain import PlainFiles

if TYPE_CHECKING:
    from limpet.index.index import Layout

PACKS_BYTES = 64 << 20
MANIFEST = "manifest.json"
PACKAGE = "datapackage.json"
JSON_SCHEMA = "schema.json"
ABOUT = "about.txt"

ABOUT_TEXT = (
    b"Files of another program that lay where the index has its own, as they were. `limpet index adopt` moved them\n"
    b"here and put their records into the index. Limpet does not read them again: delete this folder when you like.\n"
)


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that was not taken in, and why. It stays as it is."""

    name: str
    reason: str


@dataclass(slots=True)
class AdoptReport:
    """What was taken in. `ignored` files have another ending; `deleted` are originals that are gone.

    `created`: the index was made where the files lie; `moved` of them are in its folder `adopted/` now.
    """

    files: int = 0
    records: int = 0
    packs: int = 0
    deleted: int = 0
    ignored: int = 0
    moved: int = 0
    created: bool = False
    bad: list[BadFile] = field(default_factory=list)


def import_existing(
    whole: WholeIndex, stamps: Stamps, source: FileSource | None = None, *, quiesced: bool = False
) -> AdoptReport:
    """Copy plain `{key}.usv` files into the index: from `source`, or those that lie just beside its manifest.

    Each file is one record, its fields in the order of the index's columns, and its name is the key; so are those in
    the source's `inbox/*/`. Files in its `shards/` have many, or none. A record without `updated_at` was written when
    its file was. With `quiesced` an original is deleted once its records are durable here; without, all stay, since a
    program that still writes them could put a newer record between our read and our delete (F18). Taking the same files
    in twice changes nothing.
    Bad files are reported and kept, and the rest goes on.
    Raises: Missing if there is no index or source; Invalid for a source that is an index of Limpet's own; whatever a
    write met: then nothing was deleted that is not durable here.
    Cost: 1 GET + 1 LIST per 1,000 files + 1 GET a file; 1 PUT for each shard touched, for each 64 MiB of records;
    1 DELETE a file with `quiesced`.   Crash: some records are taken in and others not; run it again.
    """
    manifest = load(whole).value
    if source is None:
        source = StoreSource(whole.storage.store, whole.storage.keys.root, shards=False)
    return _taken(_ExistingFiles(whole, manifest, stamps, source, quiesced))


def import_in_place(
    whole: WholeIndex, layout: Layout, stamps: Stamps, source: FileSource | None = None, *, quiesced: bool = False
) -> AdoptReport:
    """Make an index of the plain files that lie where it should be: beside its manifest, in `shards/` and `inbox/*/`.

    All files are read and checked first; if one is bad nothing is changed. Then those in `shards/` and `inbox/`, and
    another program's `datapackage.json` and `schema.json`, are copied to `adopted/` as they are; all records are put;
    those in `shards/` and `inbox/` are deleted; the manifest comes last.
    Raises: Invalid unless `quiesced`, since a program that still writes there would lose what it writes, and if there
    is an index; Missing if no files are there; Corrupt for an index of Limpet's own without its manifest; Conflict if
    files are written meanwhile.
    Cost: 4 GETs + 1 PUT + 1 DELETE a file; 1 PUT for each shard; 4 LISTs per 1,000 files; as `Layout.complete`.
    Crash: every file is where it was, or in `adopted/`, or both; run it again.
    """
    storage, manifest = whole.storage, layout.planned()
    keys = storage.keys
    here = source or StoreSource(storage.store, keys.root)
    if whole.cell.read() is not None:
        raise Invalid(f"there is an index {whole.name!r} already", hint=f"`limpet index adopt {whole.name}` adds to it")
    _refuse_own(storage)
    kept = storage.store.list(keys.adopted)
    if not any(stat.key.endswith(ENDING) for stat in chain(here.files(), kept)):
        raise Missing(f"{keys.root} holds no record files", hint=f"`limpet index create {whole.name}` makes an index")
    if not quiesced:
        raise Invalid(
            f"{keys.root} holds files of another program, some of which are moved to {keys.adopted}",
            hint="stop everything that writes them, then say --quiesced",
        )
    checked = _taken(_ExistingFiles(whole, manifest, stamps, here, quiesced=False, dry=True))
    if checked.bad:
        return checked
    storage.store.put(Key(f"{keys.adopted}/{ABOUT}"), ABOUT_TEXT)
    in_the_way = _copy(storage, here)
    report = _taken(_ExistingFiles(whole, manifest, stamps, here, quiesced=False))
    for error in here.delete(in_the_way).values():
        if error is not None:
            raise error
    layout.put_shards(manifest)
    for stat in storage.store.list(keys.shards):
        if stat.size and stat.key.endswith(ENDING):
            raise Conflict(f"{stat.key} was written meanwhile", hint="stop all that writes there, then try again")
    layout.complete(manifest)
    report.created, report.moved = True, len(in_the_way)
    return report


def _taken(adopter: _ExistingFiles) -> AdoptReport:
    for batch in batches(adopter.source.files()):
        adopter.take(batch)
    adopter.flush()
    return adopter.report


def _refuse_own(storage: IndexStorage) -> None:
    """Go on only if what lies there without a manifest is no index of Limpet's own.   Raises: Corrupt.   Cost: 3 LISTs.

    Packs may be those of an adoption that was interrupted: it began with a file in `adopted/`.
    """
    keys, store = storage.keys, storage.store
    if next(store.list(keys.adopted), None) is not None:
        return
    own = next(store.list(keys.packs), None) or next(store.list(keys.quarantine), None)
    if own is not None:
        raise Corrupt(
            f"{own.key} is of an index of Limpet's own, which has no manifest",
            hint=f"restore {keys.manifest} from a backup",
        )


def _copy(storage: IndexStorage, here: FileSource) -> list[str]:
    """Copy what stands in the way of an index's own files; the names of those to delete.   Raises: Conflict."""
    in_the_way: list[str] = []
    for batch in batches(here.files()):
        some = [str(stat.key) for stat in batch if "/" in stat.key and stat.size and stat.key.endswith(ENDING)]
        derived = [str(stat.key) for stat in batch if stat.key in (PACKAGE, JSON_SCHEMA)]
        for name, data in here.read([*some, *derived]).items():
            if isinstance(data, LimpetError):
                raise data
            _keep_copy(storage, Key(f"{storage.keys.adopted}/{name}"), data)
        in_the_way += some
    return in_the_way


def _keep_copy(storage: IndexStorage, key: Key, data: bytes) -> None:
    """Put a file where it stays; one that is there already must be the same.   Raises: Conflict."""
    try:
        storage.store.put(key, data, when=Absent())
    except (Conflict, OutcomeUnknown):
        try:
            there = storage.store.get(key, size_max=SHARD_BYTES_MAX).data
        except Missing:
            raise Unavailable(f"{key} could not be put", hint="try again") from None
        if there != data:
            raise Conflict(
                f"{key} is there from an earlier run, with other bytes than the file that was to be moved there",
                hint="the file was written again since: move one of the two elsewhere, then try again",
            ) from None


class _ExistingFiles:
    def __init__(
        self,
        whole: WholeIndex,
        manifest: Manifest,
        stamps: Stamps,
        source: FileSource,
        quiesced: bool,
        *,
        dry: bool = False,
    ) -> None:
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._stamps = stamps
        self.source = source
        self._quiesced = quiesced
        self._lines: dict[bytes, bytes] = {}
        self._size = 0
        self._names: list[str] = []
        self._is_foreign = False
        self._dry = dry
        self.report = AdoptReport()

    def take(self, batch: list[Stat]) -> None:
        """Read some files, and keep what is good in memory."""
        wanted = {str(stat.key): stat for stat in batch if stat.key.endswith(ENDING)}
        self.report.ignored += len(batch) - len(wanted)
        if not self._is_foreign and any("/" in name for name in wanted):
            self._demand_foreign()
        for name, data in self.source.read([*wanted]).items():
            try:
                if isinstance(data, LimpetError):
                    raise data
                lines = self._lines_of(name, data, wanted[name].modified)
            except LimpetError as error:
                self._bad(name, f"{error} ({error.hint})" if error.hint else str(error))
            else:
                self._keep(name, lines)
        if self._size >= PACKS_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put what is in memory where it belongs; once that is durable, the originals may go."""
        if self._dry:
            self._lines, self._size, self._names = {}, 0, []
            return
        self.report.packs += put_packs(self._storage, self._manifest, [*self._lines.values()])
        if self._quiesced:
            for name, error in self.source.delete(self._names).items():
                if error is None:
                    self.report.deleted += 1
                else:
                    self._bad(name, f"it was taken in, but stays: {error}")
        self._lines, self._size, self._names = {}, 0, []

    def _bad(self, name: str, reason: str) -> None:
        """Note a bad file. On a disk its name may be no valid Unicode."""
        self.report.bad.append(BadFile(name.encode(errors="replace").decode(), reason))

    def _demand_foreign(self) -> None:
        """Limpet's own shards have escapes and tombstones, which plain files do not have.   Raises: Invalid."""
        self._is_foreign = True
        found = self.source.read([MANIFEST])[MANIFEST]
        if isinstance(found, Missing):
            return
        if isinstance(found, LimpetError):
            raise found
        try:
            records.decode(found, Manifest, what=MANIFEST)
        except Corrupt:
            return
        raise Invalid(
            f"the {SHARDS}/ there belong to an index of Limpet's own",
            hint="`limpet index export` it, and `limpet index import` that",
        )

    def _lines_of(self, name: str, data: bytes, modified: datetime) -> list[bytes]:
        """The records of a file as lines of the index, all or none.   Raises: Invalid."""
        found = rows(data, self._schema)
        is_shard = name.startswith(f"{SHARDS}/")
        if not is_shard and len(found) != 1:
            what = f"it has {len(found)} records; the file of a key has one" if found else "it is empty"
            raise Invalid(what, hint="")
        lines: list[bytes] = []
        latest = self._stamps.latest()
        for number, fields in enumerate(found, 1):
            where = f"record {number}"
            values = values_of(fields, self._schema, where=where)
            at = stamp_in(values, where=where) or modified
            line = self._schema.line(values, given(at, latest, where=where), where=where)
            key = self._schema.key_text(values[self._schema.key])
            if not is_shard and not is_named(name.rpartition("/")[2].removesuffix(ENDING), key):
                raise Invalid(f"its name is not that of its key {key!r}", hint="rename it, or correct the key")
            lines.append(line)
        return lines

    def _keep(self, name: str, lines: list[bytes]) -> None:
        shape = self._schema.shape
        for key, line in zip(keys_of(lines, shape), lines, strict=True):
            other = self._lines.get(key)
            if other is None or rank(line, shape) > rank(other, shape):
                self._lines[key] = line
            self._size += len(line)
        self._names.append(name)
        self.report.files += 1
        self.report.records += len(lines)


SHARDS = "shards"
INBOX = "inbox"


class FileSource(Protocol):
    """Some files, by their name below one place: those just there, in its folder `shards/`, and in `inbox/*/`."""

    def files(self) -> Iterator[Stat]:
        """Every file, in no particular order; `key` is its name.   Raises: Missing if there is no such place."""

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        """The bytes of each, or the error that its read met."""

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """Delete each; None, or the error that it met."""


_DEPTHS = {SHARDS: 0, INBOX: 1}
"""By folder, how many more are between it and its files."""


class StoreSource:
    """Below a prefix of a store. `shards=False`: only what lies just there, as in the folder of an index of ours."""

    def __init__(self, store: Store, prefix: str = "", *, shards: bool = True) -> None:
        self._store = store
        self._prefix = prefix
        self._shards = shards

    def files(self) -> Iterator[Stat]:
        """Other folders are jumped over.   Cost: 1 LIST a folder, and 1 per 1,000 files."""
        after: str | None = None
        while True:
            for stat in self._store.list(self._prefix, after=after):
                name = stat.key[len(self._prefix) + 1 :] if self._prefix else stat.key
                folder, _, rest = name.partition("/")
                if not rest or (self._shards and rest.count("/") == _DEPTHS.get(folder)):
                    yield Stat(Key(name), stat.size, stat.version, stat.modified)
                elif not self._shards or folder not in _DEPTHS:
                    # no name that begins with the folder's and a slash comes after this one
                    after = join(self._prefix, f"{folder}0")
                    break
            else:
                return

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        """Cost: 1 GET each."""
        found = self._store.get_many([self._key(name) for name in names], size_max=WAITING_BYTES_MAX)
        blobs = {name: found[self._key(name)] for name in names}
        return {name: blob if isinstance(blob, LimpetError) else blob.data for name, blob in blobs.items()}

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """Cost: 1 DELETE each."""
        done = self._store.delete_many([self._key(name) for name in names])
        return {name: done[self._key(name)] for name in names}

    def _key(self, name: str) -> Key:
        return join(self._prefix, name)


class FolderSource:
    """A folder of this machine, with file names that some other program chose. No link below it is followed.

    `root`: a folder above it below which none is followed either, such as that of a store.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, shards: bool = True, root: str | os.PathLike[str] | None = None
    ) -> None:
        self._path = Path(path)
        self._shards = shards
        self._files = PlainFiles(root or path)
        self._at = os.path.relpath(path, root) if root else ""

    def files(self) -> Iterator[Stat]:
        if not self._path.is_dir():
            raise Missing(f"there is no folder {self._path}")
        yield from self._in("")
        if self._shards:
            yield from self._in(SHARDS)
            for folder in sorted(self._folders(INBOX)):
                yield from self._in(f"{INBOX}/{folder}")

    def _in(self, folder: str) -> Iterator[Stat]:
        with self._scan(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted since its name was read
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    yield Stat(Key(name), found.st_size, Version(""), _time(found.st_mtime))

    def _folders(self, folder: str) -> list[str]:
        with self._scan(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    @contextmanager
    def _scan(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """What is in a folder; nothing if it is none.   Raises: Denied; Unavailable."""
        with ExitStack() as stack:
            entries: Iterator[os.DirEntry[str]] = iter(())
            try:
                opened = stack.enter_context(self._files.folder(self._name(folder)))
                entries = stack.enter_context(os.scandir(opened))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                raise _failure(f"cannot list {self._path / folder}", error) from None
            yield entries

    def _name(self, name: str) -> str:
        return "/".join(part for part in (self._at, name) if part)

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        found: dict[str, bytes | LimpetError] = {}
        for name in names:
            try:
                with open(self._files.read(self._name(name)), "rb") as file:
                    found[name] = file.read()
            except OSError as error:
                found[name] = _failure(f"cannot read {self._path / name}", error)
        return found

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        done: dict[str, LimpetError | None] = {}
        for name in names:
            try:
                self._files.delete(self._name(name))
                done[name] = None
            except OSError as error:
                done[name] = _failure(f"cannot delete {self._path / name}", error)
        return done


def _failure(what: str, error: OSError) -> LimpetError:
    if isinstance(error, FileNotFoundError):
        return Missing(f"{what}: it is not there")
    return failure(what, error)


def _time(seconds: float) -> datetime:
    """The time of a file; one that no calendar has is the end of time, which no record may be stamped with."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


ENDING = ".usv"
UNIT, RECORD = "\x1f", "\x1e"


def rows(data: bytes, schema: Schema) -> list[list[str]]:
    """The fields of each record. Records end with U+001E, or without any with LF; the last one need not.

    Nothing is escaped in such a file: a backslash is a backslash.
    Raises: Invalid for what is not UTF-8, or begins with a header.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    if RECORD in text:
        records = [part.removeprefix("\r").removeprefix("\n") for part in text.split(RECORD)]
    else:
        records = [part.removesuffix("\r") for part in text.split("\n")]
    if not records[-1]:
        records.pop()
    found = [record.split(UNIT) for record in records]
    if not found:
        return []
    names = [field.name for field in schema.columns]
    if len(found[0]) > 1 and found[0] == names[: len(found[0])]:
        raise Invalid("it begins with a header", hint="remove that line: the columns are those of the index, in order")
    return found


def values_of(fields: Sequence[str], schema: Schema, *, where: str) -> dict[str, Any]:
    """The values of a record.

    Fields that are left out at the end, or empty, are null; a string that must be there may be empty.
    Raises: Invalid, naming record and field.
    """
    columns = schema.columns
    if len(fields) > len(columns):
        names = ", ".join(field.name for field in columns)
        raise Invalid(f"{where} has {len(fields)} fields, and the index has {len(columns)}", hint=f"they are {names}")
    values: dict[str, Any] = {}
    for column, text in zip(columns, fields, strict=False):
        try:
            values[column.name] = _value(column, text)
        except Invalid as error:
            raise Invalid(f"{where}: field {column.name!r}: {error}", hint=error.hint) from None
    return values


def _value(field: Field, text: str) -> Any:
    if not text:
        return "" if field.required and field.type == "string" else None
    if field.type == "datetime" or field.name == UPDATED_AT:
        with suppress(ValueError):
            at = datetime.fromisoformat(text.strip())
            if at.tzinfo is None:
                return at.replace(tzinfo=UTC)  # a program that leaves the zone out writes UTC, as the seed's does
    return from_text(field.type)(text)


def is_named(name: str, key: str) -> bool:
    """Whether a file of that name, without its ending, is that of the key: as it is, or percent-encoded."""
    return name in (key, encoded(key)) or unquote(name) == key
