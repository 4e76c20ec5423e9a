"""Importing existing record files into an index: plain US-delimited text that another program wrote.

Such files may be in the folder of the index itself. Their shards have the same names as Limpet's, but other lines: no
escapes, no `_deleted`, unsorted. So they are moved to `adopted/`, and their records are put into packs; the manifest is
written last. Without a manifest there is no index, so an incomplete one is never read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from limpet.index.codec import UPDATED_AT, Field, Schema
from limpet.index.formats.api import from_text
from limpet.index.maintain import WholeIndex, batches, load, put_packs
from limpet.index.storage import SHARD_BYTES_MAX, WAITING_BYTES_MAX, IndexStorage, Manifest
from limpet.index.writer import Stamps, stamp_in
from limpet.kernel import records
from limpet.kernel.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key, encoded
from limpet.kernel.store.api import Absent, Stat, Version
from limpet.kernel.store.sources import BadFile, FileSource, Folders, StoreSource, bad_file, shown
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.index.index import Layout

PACKS_BYTES = 64 << 20
MANIFEST = "manifest.json"
PACKAGE = "datapackage.json"
JSON_SCHEMA = "schema.json"
ABOUT = "about.txt"
SHARDS = "shards"
INBOX = "inbox"

RECORD_FOLDERS: Folders = {"": (0,), SHARDS: (0,), INBOX: (1,)}
"""The places of record files in the folder of another program: the top level, `shards/`, the folders of `inbox/`."""
BESIDE: Folders = {"": (0,)}
"""Their place beside the objects of an index of Limpet."""
NOT_THEIRS = frozenset(("adopted", "imports", "packs", "quarantine"))
"""Folders of an index of Limpet that another program's does not have."""
OWN_OBJECTS = NOT_THEIRS | {INBOX, SHARDS, MANIFEST, PACKAGE, JSON_SCHEMA}
"""What lies in the folder of an index of Limpet."""
OLD_MANIFEST = "manifest.usv"
"""A list of the keys or shards, as another program may keep it. It says nothing that the records do not."""
DESCRIPTIONS = frozenset(
    (MANIFEST, OLD_MANIFEST, *(f"{at}{name}" for at in ("", f"{SHARDS}/") for name in (PACKAGE, JSON_SCHEMA)))
)
"""Files of another program that describe its records. An index of Limpet has its own in their place."""
LOCK = ".lock"
EXAMPLES_MAX = 3

ABOUT_TEXT = (
    b"Files of another program that were in the folder of this index, unchanged. `limpet index adopt` moved them here\n"
    b"and put their records into the index. Limpet does not read them again: you may delete this folder.\n"
)


@dataclass(slots=True)
class AdoptReport:
    """What was imported. `ignored`: files that are no records, of which `ignored_names` are examples; `locks`: locks
    of the other program's compilers; `deleted`: originals that were deleted.

    `created`: the index was created in the folder of the files; `moved` of them are in its folder `adopted/` now.
    """

    files: int = 0
    records: int = 0
    packs: int = 0
    deleted: int = 0
    ignored: int = 0
    ignored_names: list[str] = field(default_factory=list)
    locks: int = 0
    moved: int = 0
    created: bool = False
    bad: list[BadFile] = field(default_factory=list)

    def ignore(self, name: str) -> None:
        """Count a file that is no record."""
        self.ignored += 1
        if len(self.ignored_names) < EXAMPLES_MAX:
            self.ignored_names.append(shown(name))


def import_existing(
    whole: WholeIndex,
    stamps: Stamps,
    source: FileSource | None = None,
    *,
    quiesced: bool = False,
    any_name: bool = False,
) -> AdoptReport:
    """Import plain `{key}.usv` files into the index: from `source`, or those beside its manifest.

    Each file is one record, with its fields in the order of the index's columns, and named by its key; so are those in
    the source's `inbox/*/`. Files in its `shards/` have any number of records. The default of `updated_at` is the
    modification time of the file. With `quiesced` an original is deleted once its records are durable here; without it
    all stay, since a program that still writes them could add a newer record between our read and our delete (F18).
    Importing the same files twice changes nothing. `any_name`: a file's name need not be that of its key, which counts.
    A lock of the other program's compilers is not looked at; with `quiesced` it is deleted. Other files are counted.
    Invalid files are reported and kept; the others are imported.
    Raises: Missing if there is no index or source; Invalid for a source that is an index of Limpet itself; any write
    error: then nothing was deleted that is not durable here.
    Cost: 1 GET + 1 LIST per 1,000 files + 1 GET a file; 1 PUT for each shard touched, for each 64 MiB of records;
    1 DELETE a file with `quiesced`.   Crash: some records are imported and others not; run it again.
    """
    manifest = load(whole).value
    if source is None:
        source = StoreSource(whole.storage.store, whole.storage.keys.root, BESIDE, own=OWN_OBJECTS)
    return _ExistingFiles(whole.storage, manifest, stamps, source, any_name=any_name).run(delete=quiesced)


def import_in_place(
    whole: WholeIndex,
    layout: Layout,
    stamps: Stamps,
    source: FileSource | None = None,
    *,
    quiesced: bool = False,
    any_name: bool = False,
) -> AdoptReport:
    """Create an index from the plain files in its folder: at the top level, in `shards/` and in `inbox/*/`.

    All files are read and checked first; if one is invalid nothing is changed. Then the record files, and another
    program's locks, `datapackage.json`, `schema.json` and `manifest.json`, are copied unchanged to `adopted/`; all
    records are put; the record files and locks are deleted; the manifest is written last. `any_name`: as in
    `import_existing`.
    Raises: Invalid unless `quiesced`, since writes of another program would be lost, and if the index exists; Missing
    if there are no files; Corrupt for an index of Limpet without its manifest; Conflict if files are written meanwhile.
    Cost: 5 GETs; 4 GETs + 1 PUT + 1 DELETE a file; 1 PUT for each shard; 4 LISTs per 1,000 files; as `Layout.complete`.
    Crash: every file is in its place, in `adopted/`, or both; run it again.
    """
    storage, manifest = whole.storage, layout.planned()
    keys = storage.keys
    here = source or StoreSource(storage.store, keys.root, RECORD_FOLDERS, own=NOT_THEIRS)
    theirs = foreign_manifest(storage)
    if theirs is None and whole.cell.read() is not None:
        raise Invalid(f"there is an index {whole.name!r} already", hint=f"`limpet index adopt {whole.name}` adds to it")
    _refuse_own(storage)
    kept = storage.store.list(keys.adopted)
    if not any(stat.key.endswith(ENDING) for stat in chain(here.files(), kept)):
        raise Missing(f"{keys.root} holds no record files", hint=f"`limpet index create {whole.name}` makes an index")
    if not quiesced:
        raise Invalid(
            f"{keys.root} holds files of another program, some of which are moved to {keys.adopted}",
            hint="stop everything that writes them, then add --quiesced",
        )

    def files() -> _ExistingFiles:
        return _ExistingFiles(storage, manifest, stamps, here, any_name=any_name, replaced=DESCRIPTIONS)

    checked = files().run(check_only=True)
    if checked.bad:
        return checked
    storage.store.put(Key(f"{keys.adopted}/{ABOUT}"), ABOUT_TEXT)
    in_the_way = _copy(storage, here)
    report = files().run()
    for error in here.delete(in_the_way).values():
        if error is not None:
            raise error
    layout.put_shards(manifest)
    for stat in storage.store.list(keys.shards):
        if stat.size and stat.key.endswith(ENDING):
            raise Conflict(
                f"{stat.key} was written meanwhile", hint="stop everything that writes there, then try again"
            )
    layout.complete(manifest, instead=theirs)
    report.created, report.moved = True, len(in_the_way) + (theirs is not None)
    return report


def foreign_manifest(storage: IndexStorage) -> Version | None:
    """The version of another program's `manifest.json` in the place of ours; None if there is none.   Cost: 1 GET."""
    try:
        blob = storage.store.get(storage.keys.manifest)
    except (Missing, Corrupt):
        return None
    return blob.version if records.is_foreign(blob.data) else None


def _refuse_own(storage: IndexStorage) -> None:
    """Check that the folder is not an index of Limpet that lost its manifest.   Raises: Corrupt.   Cost: 3 LISTs.

    Packs may come from an interrupted adoption, which began with a file in `adopted/`.
    """
    keys, store = storage.keys, storage.store
    if next(store.list(keys.adopted), None) is not None:
        return
    own = next(store.list(keys.packs), None) or next(store.list(keys.quarantine), None)
    if own is not None:
        raise Corrupt(
            f"{own.key} belongs to an index of Limpet whose manifest is missing",
            hint=f"restore {keys.manifest} from a backup",
        )


def _copy(storage: IndexStorage, here: FileSource) -> list[str]:
    """Copy files whose names the index itself needs. Returns the names to delete.   Raises: Conflict."""
    in_the_way: list[str] = []
    for batch in batches(here.files()):
        some = [str(stat.key) for stat in batch if stat.size and _is_taken_over(stat.key)]
        derived = [str(stat.key) for stat in batch if stat.key in (PACKAGE, JSON_SCHEMA, MANIFEST)]
        for name, data in here.read([*some, *derived], size_max=SHARD_BYTES_MAX).items():
            if isinstance(data, LimpetError):
                raise data
            _keep_copy(storage, Key(f"{storage.keys.adopted}/{name}"), data)
        in_the_way += some
    return in_the_way


def _is_taken_over(name: str) -> bool:
    """Whether a file of another program is no more than a leftover once the index is made: a record file, a lock, or a
    description of the shards beside them.
    """
    return name.endswith(ENDING) or _is_lock(name) or (name in DESCRIPTIONS and name.startswith(f"{SHARDS}/"))


def _is_lock(name: str) -> bool:
    return name.startswith(f"{SHARDS}/") and name.endswith(LOCK)


def _keep_copy(storage: IndexStorage, key: Key, data: bytes) -> None:
    """Create a file; if it exists, it must have the same bytes.   Raises: Conflict."""
    try:
        storage.store.put(key, data, when=Absent())
    except (Conflict, OutcomeUnknown):
        try:
            there = storage.store.get(key, size_max=SHARD_BYTES_MAX).data
        except Missing:
            raise Unavailable(f"{key} could not be written", hint="try again") from None
        if there != data:
            raise Conflict(
                f"{key} exists from an earlier run, with other bytes than the file to be moved",
                hint="the file was written again since: move one of them elsewhere, then try again",
            ) from None


class _ExistingFiles:
    def __init__(
        self,
        storage: IndexStorage,
        manifest: Manifest,
        stamps: Stamps,
        source: FileSource,
        *,
        any_name: bool,
        replaced: Collection[str] = (),
    ) -> None:
        self._any_name = any_name
        self._replaced = replaced
        self._storage = storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._stamps = stamps
        self._source = source
        self._lines: list[bytes] = []
        self._size = 0
        self._names: list[str] = []
        self._is_foreign = False
        self._report = AdoptReport()

    def run(self, *, delete: bool = False, check_only: bool = False) -> AdoptReport:
        """Read all files, and put valid records into packs. `delete`: delete files once their records are durable."""
        for batch in batches(self._source.files(self._report.ignore)):
            self._take(batch)
            if self._size >= PACKS_BYTES:
                self._flush(delete, check_only)
        self._flush(delete, check_only)
        return self._report

    def _take(self, batch: list[Stat]) -> None:
        wanted = {str(stat.key): stat for stat in batch if stat.key.endswith(ENDING)}
        for stat in batch:
            if _is_lock(stat.key):
                self._report.locks += 1
                self._names.append(str(stat.key))
            elif stat.key not in wanted and stat.key not in self._replaced:
                self._report.ignore(stat.key)
        if not self._is_foreign and any("/" in name for name in wanted):
            self._check_foreign()
        for name, data in self._source.read([*wanted], size_max=SHARD_BYTES_MAX).items():
            try:
                if isinstance(data, LimpetError):
                    raise data
                lines = self._lines_of(name, data, wanted[name].modified)
            except LimpetError as error:
                if name != OLD_MANIFEST:
                    self._report.bad.append(bad_file(name, error))
                elif name not in self._replaced:
                    self._report.ignore(name)
            else:
                self._lines += lines
                self._size += sum(map(len, lines))
                self._names.append(name)
                self._report.files += 1
                self._report.records += len(lines)

    def _flush(self, delete: bool, check_only: bool) -> None:
        if not check_only:
            self._report.packs += put_packs(self._storage, self._manifest, self._lines)
        if delete:
            for name, error in self._source.delete(self._names).items():
                if error is None:
                    self._report.deleted += 1
                else:
                    self._report.bad.append(bad_file(name, f"it was imported, but not deleted: {error}"))
        self._lines, self._size, self._names = [], 0, []

    def _check_foreign(self) -> None:
        """Check that the shards are not Limpet's, which have escapes and tombstones.   Raises: Invalid."""
        self._is_foreign = True
        found = self._source.read([MANIFEST], size_max=WAITING_BYTES_MAX)[MANIFEST]
        if isinstance(found, Missing):
            return
        if isinstance(found, LimpetError):
            raise found
        try:
            records.decode(found, Manifest, what=MANIFEST)
        except Corrupt:
            return
        raise Invalid(
            f"the {SHARDS}/ there belong to an index of Limpet",
            hint="`limpet index export` it, and `limpet index import` that",
        )

    def _lines_of(self, name: str, data: bytes, modified: datetime) -> list[bytes]:
        found = rows(data, self._schema)
        is_shard = name.startswith(f"{SHARDS}/")
        if not is_shard and len(found) != 1:
            what = f"it has {many(len(found), 'record')}; the file of a key has one" if found else "it is empty"
            raise Invalid(what, hint="")
        lines: list[bytes] = []
        latest = self._stamps.latest()
        for number, fields in enumerate(found, 1):
            where = f"record {number}"
            values = values_of(fields, self._schema, where=where)
            at = values.get(UPDATED_AT)
            stamp = stamp_in(modified if at is None else at, latest, where=where)
            line = self._schema.line(values, stamp, where=where)
            key = self._schema.key_text(values[self._schema.key])
            stem = name.rpartition("/")[2].removesuffix(ENDING)
            if not (is_shard or self._any_name or stem in (key, encoded(key)) or unquote(stem) == key):
                hint = "rename it, correct the key, or take all files by their keys: --any-name"
                raise Invalid(f"its name is not that of its key {key!r}", hint=hint)
            lines.append(line)
        return lines


ENDING = ".usv"
UNIT, RECORD = "\x1f", "\x1e"


def rows(data: bytes, schema: Schema) -> list[list[str]]:
    """The fields of each record. Records end with U+001E, or if there is none with LF; the last one need not.

    There are no escapes in such a file.
    Raises: Invalid if it is not UTF-8, or begins with a header.
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

    Missing fields at the end and empty fields are null; a required string may be empty.
    Raises: Invalid, naming record and field.
    """
    columns = schema.columns
    if len(fields) > len(columns):
        names = ", ".join(field.name for field in columns)
        raise Invalid(
            f"{where} has {many(len(fields), 'field')}, and the index has {len(columns)}", hint=f"they are {names}"
        )
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
                return at.replace(tzinfo=UTC)  # the default time zone is UTC
    return from_text(field.type)(text)
