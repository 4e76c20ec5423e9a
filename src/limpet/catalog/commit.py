"""A commit to tables, from the client's JSON to a decision, in two steps: preparation, then decision on the state.

The preparation runs in the thread of the client's request: it parses, checks every location (F29), generates ids and
folders, takes the time, reads metadata and computes the new metadata. The decision (`Decide`) runs in the leader's
thread. It is a pure function of the prepared commit, the state, and the metadata that earlier requests have created. It
grants (`Grant`), refuses (raises), or names the metadata that the commit must be computed from first (`NeedsMetadata`).
New metadata is written to a new file, together with the batch: when the head names the file, it exists.

The updates are checked and applied by `limpet.catalog.iceberg.commits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from limpet.catalog.iceberg.commits import (
    NamedByCommit,
    as_text,
    check_requirement,
    checked,
    created,
    is_light,
    joined,
    listed,
    named_by,
    only,
    updated,
)
from limpet.catalog.iceberg.tables import DEFAULT_VERSION, document_of, whole
from limpet.catalog.iceberg.updates import RemoveRef, RemoveSnapshots, UpgradeVersion
from limpet.catalog.leader import Documents, Grant, NeedsMetadata
from limpet.catalog.maintain.decide import GC_PROPERTY, owns_files
from limpet.catalog.names import (
    CommitFailed,
    Entry,
    Namespace,
    check_free,
    check_name,
    check_namespace,
    entry_in,
    find_entry,
    free_in,
    key_of,
    location_of,
    overlapping,
    reserve,
    shown,
)
from limpet.catalog.records import CREATE, Change
from limpet.catalog.state import LIVE, CatalogState
from limpet.catalog.warehouse import Document, Json, Warehouse
from limpet.kernel.errors import Invalid, LimpetError, Unavailable
from limpet.kernel.wording import many

METADATA_PATH = "write.metadata.path"
TABLES_MAX = 1000
UPDATES_MAX = 10_000
ADDED_MAX = 1000
"""Updates of schemas, partition specs, sort orders and the like in one commit."""
REQUIREMENTS_MAX = 1000
VALUES_MAX = 200_000
LIGHT_MAX = 32
ROUNDS_AHEAD = 3
"""After this many lost rounds, the leader itself computes a commit with few updates."""

Needs = Mapping[str, Callable[[Document], Document | None]]
"""By the path of a metadata file, the function that computes the new metadata from it."""


# ---- requests ----


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A parsed request to change a table: its checked updates and requirements, and what they refer to."""

    updates: Sequence[Json]
    requirements: Sequence[Json]
    named: NamedByCommit

    @property
    def creates(self) -> bool:
        """Whether it creates the table."""
        return "assert-create" in map(itemgetter("type"), self.requirements)

    @property
    def is_light(self) -> bool:
        """Whether it can be computed quickly for every table: few updates, none of schemas, specs and the like."""
        return self.is_short and all(map(is_light, self.updates))

    @property
    def is_short(self) -> bool:
        """Whether it has few updates, of any kind."""
        return len(self.updates) <= LIGHT_MAX


def parse_commit(request: Mapping[str, Any], canonical: Callable[[str], str] = str) -> TableCommit:
    """A client's request to change a table.   Raises: Invalid, also for an unknown update or requirement.

    The size is checked first. `canonical` normalizes a URL.
    """
    asked, required = listed(request, "updates", UPDATES_MAX), listed(request, "requirements", REQUIREMENTS_MAX)
    check_size(asked, "the commit")
    asked = [as_text(update, canonical) for update in joined(asked)]
    updates, requirements = checked(asked, required)
    heavy = len(updates) - sum(map(is_light, updates))
    if heavy > ADDED_MAX:
        raise Invalid(
            f"the commit has {many(heavy, 'update')} of schemas, specs and the like; "
            f"at most {ADDED_MAX} are taken at once",
            hint="commit them in several steps",
        )
    return TableCommit(updates, requirements, named_by(updates))


_SCALARS = frozenset((str, int, bool, float, type(None)))


def check_size(value: Any, what: str) -> None:
    """Check that a request has not too many values.   Raises: Invalid."""
    count, layer = 0, [value]
    while layer:
        count += len(layer)
        if count > VALUES_MAX:
            raise Invalid(f"{what} has more than {VALUES_MAX} values", hint="commit in several steps")
        inner: list[Any] = []
        for each in layer:
            if type(each) in _SCALARS:
                continue
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, list | tuple):
                inner += each
        layer = inner


# ---- requirements and updates, on metadata as JSON ----


def apply(document: Document, commit: TableCommit, metadata_location: str, now_ms: int) -> Document | None:
    """The metadata after a commit; None if nothing changes. `metadata_location`: the location of `document`.

    Raises: CommitFailed if a requirement does not hold, or the commit is stale; Invalid; Corrupt.
    """
    table = whole(document)
    for requirement in commit.requirements:
        check_requirement(requirement, table)
    # The commit's time was taken before it waited for the leader; the table may have changed since.
    changed = updated(table, commit.updates, metadata_location, max(now_ms, table["last-updated-ms"]))
    if changed is None:
        return None
    new = document_of(changed)
    _check_removal(document, new, commit)
    return new


def _check_removal(old: Document, new: Document, commit: TableCommit) -> None:
    """Check that snapshots may be removed: that others do not need the table's files, and that no branch or tag goes
    with its snapshot, unless the commit removes it by its name.

    Both may have changed after the client of an expiry looked at the table.   Raises: CommitFailed.
    """
    if not only(RemoveSnapshots, commit.updates):
        return
    if not owns_files(whole(old)["properties"]):
        raise CommitFailed(f"Cannot remove snapshots: {GC_PROPERTY} is false, others may need the files of the table")
    removed = {update["ref-name"] for update in only(RemoveRef, commit.updates)}
    before, after = whole(old)["refs"], whole(new)["refs"]
    for name in before:
        if name not in after and name not in removed:
            raise CommitFailed(f"Cannot remove snapshot {before[name].get('snapshot-id')}: {name} refers to it")


# ---- decisions ----


class WorkedMetadata:
    """The metadata after one request, by the path of the metadata before it: computed before the leader is asked.

    The leader only checks whether a table still has the metadata that this was computed from. So a slow commit does not
    delay other clients (C4).
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._results: dict[str, Document | LimpetError | None] = {}
        self.rounds = 0
        """How often the tables were changed by others meanwhile."""

    def has(self, path: str) -> bool:
        """Whether the request was computed from this metadata."""
        return path in self._results

    def result(self, path: str) -> Document | None:
        """The metadata after the request; None if nothing changes.   Raises: the refusal of the request."""
        result = self._results[path]
        if isinstance(result, LimpetError):
            raise result
        return result

    def work_out(self, needs: Needs) -> None:
        """Compute the request from metadata. A refusal is kept for the leader: the request may be granted already, and
        metadata that is gone may be that of a table that was purged since.

        Raises: Unavailable.   Cost: 1 GET each, unless in memory.
        """
        for path, apply in needs.items():
            try:
                made = apply(self._warehouse.read(path))
            except Unavailable:
                raise
            except LimpetError as error:
                self._results[path] = error
                continue
            if made is not None:
                made.digest()
            self._results[path] = made


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit to one table with checked locations, and its time. `root`: the new folder; None if it does not change.
    `created`: the metadata of a table that it creates, or an error, which the leader raises unless the table exists."""

    namespace: Namespace
    name: str
    commit: TableCommit
    root: str | None
    places: Mapping[str, str]
    now_ms: int
    created: Document | LimpetError | None = None

    def needs(self, warehouse: Warehouse, path: str) -> Needs:
        """By path, the function that computes the new metadata."""
        location = warehouse.location(path)
        return {path: lambda document: apply(document, self.commit, location, self.now_ms)}


def prepare_commit(
    warehouse: Warehouse, known: Callable[[], CatalogState], namespace: Namespace, name: str, request: Mapping[str, Any]
) -> PreparedCommit:
    """A client's commit with checked locations; if it creates a table, with its metadata.

    `known` returns the state with the folders of others, if a new folder is needed.
    Raises: Invalid.
    """
    parsed = parse_commit(request, warehouse.canonical)
    for what, url in parsed.named.files:
        warehouse.path_of(url, what)
    places = warehouse.check_properties(parsed.named.properties)
    root = None if parsed.named.location is None else warehouse.root_of(parsed.named.location)
    if not parsed.creates:
        return PreparedCommit(namespace, name, parsed, root, places, warehouse.now_ms())
    root = root or new_root(warehouse, known(), namespace, name)
    created: Document | LimpetError
    try:
        created = _new_metadata(parsed, warehouse, root)
    except LimpetError as error:
        created = error
    return PreparedCommit(namespace, name, parsed, root, places, warehouse.now_ms(), created)


def _new_metadata(commit: TableCommit, warehouse: Warehouse, root: str) -> Document:
    for requirement in commit.requirements:
        if requirement["type"] != "assert-create":
            raise CommitFailed("Requirement failed: the table does not exist")
    upgrades = only(UpgradeVersion, commit.updates)
    version = upgrades[-1]["format-version"] if upgrades else DEFAULT_VERSION
    where, uuid = warehouse.location(root), warehouse.new_uuid()
    return document_of(created(commit.updates, where, uuid, version, warehouse.now_ms()))


def prepare_transaction(
    warehouse: Warehouse, known: Callable[[], CatalogState], changes: object
) -> tuple[PreparedCommit, ...]:
    """The commits of a transaction, at most one for each table.   Raises: Invalid."""
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise Invalid("table-changes must be a list of at least one change")
    if len(changes) > TABLES_MAX:
        raise Invalid(f"a transaction changes at most {TABLES_MAX} tables, this one {len(changes)}")
    named: dict[tuple[Namespace, str], Mapping[str, Any]] = {}
    updates = 0
    for change in changes:
        identifier = change.get("identifier") if isinstance(change, Mapping) else None
        if not isinstance(identifier, Mapping):
            raise Invalid("each table change must name its table by an identifier")
        namespace = check_namespace(identifier.get("namespace") or ())
        name = namespace, check_name(identifier.get("name"), "table name")
        if name in named:
            raise Invalid(f"the transaction names {shown(*name)!r} twice", hint="put its updates into one change")
        named[name] = change
        updates += len(listed(change, "updates", UPDATES_MAX))
    if updates > UPDATES_MAX:
        raise Invalid(f"the transaction has {many(updates, 'update')}; at most {UPDATES_MAX} are taken at once")
    return tuple(prepare_commit(warehouse, known, *name, change) for name, change in named.items())


def commit_table(
    warehouse: Warehouse, prepared: PreparedCommit, worked: WorkedMetadata, state: CatalogState, made: Documents
) -> Grant | NeedsMetadata:
    """Change a table, or create a staged one. The result is the path of its metadata.

    Raises: NoSuchTable; NoSuchNamespace; CommitFailed; Invalid.
    """
    if prepared.created is not None:
        return _created(state, warehouse, prepared, prepared.created)
    old = entry_in(state, "t", prepared.namespace, prepared.name)
    new = _after(made.get(old.path), warehouse, prepared, worked, old.path)
    if isinstance(new, NeedsMetadata):
        return new
    if new is None:
        return Grant("commit", (), old.path)
    entry = moved(warehouse, old, new, prepared.root, prepared.places)
    change = Change(key_of("t", prepared.namespace, prepared.name), entry.value())
    reserved = reserve(state, entry.roots(), old.roots()) if entry.roots() != old.roots() else ()
    return with_files(warehouse, "commit", (change, *reserved), entry.path, {entry.path: new})


def commit_transaction(
    warehouse: Warehouse,
    prepared: Sequence[PreparedCommit],
    worked: WorkedMetadata,
    state: CatalogState,
    made: Documents,
) -> Grant | NeedsMetadata:
    """Change several tables, or create staged ones: all or none."""
    grants: list[Grant] = []
    needs: dict[str, Callable[[Any], Any]] = {}
    for commit in prepared:
        answer = commit_table(warehouse, commit, worked, state, made)
        if isinstance(answer, NeedsMetadata):
            needs |= answer.needs
        else:
            grants.append(answer)
    if needs:
        return NeedsMetadata(needs)
    reserved = [[change.key[2:] for change in grant.changes if change.key.startswith(f"{LIVE}/")] for grant in grants]
    clash = overlapping(reserved)
    if clash is not None:
        raise Invalid(f"the locations {clash[0]!r} and {clash[1]!r} of the transaction overlap")
    changes = tuple(change for grant in grants for change in grant.changes)
    return with_files(
        warehouse, "transaction", changes, None, {path: new for each in grants for path, new in each.made.items()}
    )


def with_files(
    warehouse: Warehouse, what: str, changes: tuple[Change, ...], result: Any, made: Mapping[str, Document]
) -> Grant:
    """A grant with its metadata files."""
    writes = [warehouse.put_of(path, document) for path, document in made.items()]
    return Grant(what, changes, result, tuple(writes), made)


def _after(
    document: Document | None, warehouse: Warehouse, prepared: PreparedCommit, worked: WorkedMetadata, path: str
) -> Document | NeedsMetadata | None:
    """The metadata after a commit; None if it changes nothing.   Raises: its refusal.

    If the table's metadata is not the one that it was computed from, earlier requests have changed it; `document` is
    their result. Only fast commits are computed here, in the leader's thread.
    """
    if worked.has(path):
        return worked.result(path)
    needs = prepared.needs(warehouse, path)
    if document is not None:
        if prepared.commit.is_light and document.table is not None:
            return needs[path](document)
        if prepared.commit.is_short and worked.rounds >= ROUNDS_AHEAD:
            return needs[path](document)
    return NeedsMetadata(needs)


def _created(
    state: CatalogState, warehouse: Warehouse, prepared: PreparedCommit, document: Document | LimpetError
) -> Grant:
    if find_entry(state, "t", prepared.namespace, prepared.name) is not None:
        raise CommitFailed(f"Requirement failed: table already exists: {shown(prepared.namespace, prepared.name)}")
    check_free(state, prepared.namespace, prepared.name, "t")
    if isinstance(document, LimpetError):
        raise document
    assert prepared.root is not None
    root = prepared.root
    path = warehouse.new_file(_metadata_folder(warehouse, document, root), None, document)
    entry = Entry(root, path, outside(root, prepared.places.values()))
    change = Change(key_of("t", prepared.namespace, prepared.name), entry.value())
    return with_files(warehouse, CREATE, (change, *reserve(state, entry.roots())), path, {path: document})


# ---- folders ----


def moved(warehouse: Warehouse, old: Entry, new: Document, moves_to: str | None, places: Mapping[str, str]) -> Entry:
    """The entry of a table or view with new metadata, in its old folder or in the one that it moves to."""
    root = moves_to or old.root
    more = outside(root, (*old.roots(), *places.values()), keep=old.more)
    return Entry(root, warehouse.new_file(_metadata_folder(warehouse, new, root), old.path, new), more)


def outside(root: str, places: Iterable[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """Folders of a table besides `root`: those of `keep`, and those of `places` that are not inside one already."""
    found = [place for place in keep if place != root]
    for place in places:
        if not any(f"{place}/".startswith(f"{known}/") for known in (root, *found)):
            found.append(place)
    return tuple(found)


def _metadata_folder(warehouse: Warehouse, document: Document, root: str) -> str:
    """The folder of the metadata files of a table or view: by its properties, else inside its own folder."""
    url = warehouse.canonical((document.json().get("properties") or {}).get(METADATA_PATH, "")).rstrip("/")
    return url.removeprefix(f"{warehouse.url}/") if url.startswith(f"{warehouse.url}/") else f"{root}/metadata"


def new_root(warehouse: Warehouse, known: CatalogState, namespace: Namespace, name: str, given: Any = None) -> str:
    """The folder of a new table or view: the given one, else a new one in the location of its namespace."""
    if given is not None:
        return warehouse.root_of(given)
    return warehouse.new_root(namespace, name, free_in(known), location_of(known, namespace))
