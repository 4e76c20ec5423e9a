"""Taking over the files of other programs: record files become an index, task files become a queue.

`adopt_files` implements `limpet index adopt`, `adopt_tasks` implements `limpet queue adopt`. Originals are deleted only
if the caller says that the other program has stopped (`quiesced`).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from limpet.app.fleet import in_store
from limpet.app.indexes import demand_index, has_objects, manifest_of
from limpet.app.place import absolute, store_for, url_or_default
from limpet.index import AdoptReport, Index
from limpet.index.maintain.import_existing import BESIDE, NOT_THEIRS, OWN_OBJECTS, RECORD_FOLDERS
from limpet.index.storage import DESCRIPTION_BYTES_MAX
from limpet.kernel import records
from limpet.kernel.errors import Invalid, Missing
from limpet.kernel.keys import IndexKeys, Key, QueueKeys, disk_name
from limpet.kernel.runtime import system
from limpet.kernel.store.sources import FileSource, Folders, FolderSource, StoreSource
from limpet.queue import QueueAdoptReport
from limpet.queue.adopt import OWN_OBJECTS as OWN_OF_QUEUE
from limpet.queue.adopt import QUEUE_FOLDERS

if TYPE_CHECKING:
    from limpet.app.fleet import Fleet


def adopt_tasks(fleet: Fleet, name: str, where: str | None, *, quiesced: bool = False) -> QueueAdoptReport:
    """Take the tasks of another program's queue at `where`, a folder or URL, over into the queue `name`.

    Without `where`, or if that is the folder of the queue itself, they are taken over in place.
    See `queue.adopt.Adopter.take_over` for what is read, written and deleted.
    Raises: Missing if there is nothing at `where`; Invalid in place without `quiesced`; Unsupported for a queue on SQS.
    Cost and crash: as there.
    """
    queue = in_store(fleet.queue(name), "take over files")
    root = QueueKeys.of(name).root
    in_place = where is None or _is_place_of(fleet, root, where)
    if in_place or where is None:
        source = _files_beside(fleet, root, QUEUE_FOLDERS, OWN_OF_QUEUE) or StoreSource(
            fleet.store, root, QUEUE_FOLDERS, own=OWN_OF_QUEUE
        )
    else:
        source = _files_at(fleet, where, QUEUE_FOLDERS)
    others = QueueAdoptReport()
    if next(source.files(others.ignore), None) is None:
        found = f"; other files there: {others.ignored}, such as {others.ignored_names[0]}" if others.ignored else ""
        raise Missing(
            f"there are no tasks at {where or root}{found}",
            hint="it should have a folder pending/ with <id>/task.json in it, completed/ or failed/",
        )
    return queue.adopt(source, quiesced=quiesced, in_place=in_place)


def adopt_files(
    fleet: Fleet,
    name: str,
    where: str | None,
    schema: Path | None,
    key: str | None,
    *,
    quiesced: bool,
    any_name: bool = False,
) -> tuple[AdoptReport, bool]:
    """Take plain record files into the index `name`: those at `where`, a folder or URL, else those beside its objects.

    If those lie where the index should be, and there is none, it is made of them, with the columns of `schema`, or of
    the `datapackage.json` among them. Returns what was done, and whether it was that.
    Raises: Missing; Invalid, also for a `schema` or `key` of an index that exists.
    """
    # another program may keep a manifest.json in the place of ours
    exists = not fleet.index(name).has_foreign_manifest() and manifest_of(fleet, name) is not None
    in_place = where is None and not exists and has_objects(fleet, name)
    if where is None and not exists and not in_place:
        raise Missing(
            f"there is no index {name!r} at {fleet.url}, and there are no files where it should be",
            hint=f"put them into {IndexKeys.of(name).root}/, or name their place by --from",
        )
    if not in_place and (schema or key):
        raise Invalid(
            "--schema and --key are for files that lie where an index should be",
            hint=f"the index {name!r} has its columns; leave them out" if where is None else "leave --from out",
        )
    root = IndexKeys.of(name).root
    if in_place:
        source = _files_beside(fleet, root, RECORD_FOLDERS, NOT_THEIRS)
        index = _index_of_files(fleet, name, schema, key)
        return index.adopt_in_place(source, quiesced=quiesced, any_name=any_name), True
    if where is not None:
        source = _files_at(fleet, where, RECORD_FOLDERS)
    else:
        source = _files_beside(fleet, root, BESIDE, OWN_OBJECTS)
    return demand_index(fleet, name).adopt(source, quiesced=quiesced, any_name=any_name), False


def has_records(url: str | None, name: str) -> bool:
    """Whether files lie where the index `name` would be, in a place that may be no fleet yet.   Cost: 1 LIST."""
    store = store_for(url_or_default(url), system())
    return any(stat.size for stat in store.list(IndexKeys.of(name).root))


def _index_of_files(fleet: Fleet, name: str, schema: Path | None, key: str | None) -> Index[Any]:
    """The index that is to be made of files, with the columns that were named, or those of their data package."""
    if schema is not None:
        return fleet.index(name, schema, key=key)
    keys = IndexKeys.of(name)
    shards = keys.shards.removeprefix(f"{keys.root}/")
    for folder in (keys.adopted, keys.root, keys.shards, f"{keys.adopted}/{shards}"):
        at = Key(f"{folder}/datapackage.json")
        with suppress(Missing):
            data = fleet.store.get(at, size_max=DESCRIPTION_BYTES_MAX).data
            package = records.parse_json(data, what=at, bytes_max=DESCRIPTION_BYTES_MAX)
            return fleet.index(name, package, key=key)
    raise Invalid(
        f"{keys.root} holds files and no manifest, and no datapackage.json tells their columns",
        hint="--schema FILE: a data package or table schema whose fields stand in the order of the files",
    )


def _files_beside(fleet: Fleet, prefix: str, folders: Folders, own: Collection[str] = ()) -> FileSource | None:
    """The files that lie where our objects below a prefix do; None: the objects of the store there.

    A local folder is read as such: its file names need not be those of a store.
    """
    root = _local(fleet.url)
    return None if root is None else FolderSource(_below(root, prefix), folders, own=own, root=root)


def _files_at(fleet: Fleet, where: str, folders: Folders) -> FileSource:
    folder = _local(where)
    if folder is not None:
        return FolderSource(folder, folders)
    return StoreSource(store_for(where, fleet.runtime), "", folders)


def _is_place_of(fleet: Fleet, root: str, where: str) -> bool:
    """Whether `where` is the place of the objects below the prefix `root` of the fleet."""
    ours, theirs = _local(fleet.url), _local(where)
    if ours is not None and theirs is not None:
        return _below(ours, root).resolve() == theirs.resolve()
    if ours is not None or theirs is not None:
        return False
    return absolute(where).partition("?")[0].rstrip("/") == f"{fleet.url.partition('?')[0].rstrip('/')}/{root}"


def _local(url: str) -> Path | None:
    """The folder of this machine that a URL names; None for a bucket."""
    if url.startswith("file://"):
        url = unquote(urlsplit(url).path)
    return None if "://" in url else Path(url).expanduser()


def _below(folder: Path, prefix: str) -> Path:
    return folder.joinpath(*(disk_name(part, leaf=False) for part in prefix.split("/")))
