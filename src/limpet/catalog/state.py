"""The state of a catalog and its rules, as pure functions: no store, no clock.

Three parts: the state (entries by key, answers to recent requests); names, entries and folders; publication (whether
the head allows a batch, and the next head).

The state is immutable. A change returns a new state that shares all but a few nodes with the old one. So the cost of a
group of requests depends on its changes, not on the number of tables, and readers may keep an older state. Values of
entries are stored as the JSON text of a snapshot: a snapshot is written without encoding them again, and a value is
decoded when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec

from limpet import records
from limpet.catalog.records import (
    ACTOR,
    CatalogHead,
    Change,
    CommitRecord,
    LedgerBatch,
    Link,
    RememberedAnswer,
    Row,
    SnapshotRef,
    Tail,
)
from limpet.cell import Codec
from limpet.errors import Conflict, Corrupt, Invalid, Missing, Unsupported
from limpet.ledger import AppliedBatch, Publication
from limpet.records import digest_of, json_text, moment
from limpet.sortedmap import SortedMap

ID_LIFETIME = timedelta(minutes=30)
"""How long a client's id is remembered; announced to clients."""
MINTED = "~"
"""The prefix of ids that Limpet generates for requests without one. Clients cannot send such an id."""
MINTED_LIFETIME = timedelta(minutes=1)
"""Longer than a leader tries to publish a request."""

TIDY_ABOVE = 1000

Leaf = tuple[list[str], list[str]]
"""Keys of entries, and the JSON texts of their values. Both lists are immutable."""

_decode = msgspec.json.Decoder().decode


class CatalogState:
    """Entries by key, in order, and answers by the id of their request."""

    __slots__ = ("_answers", "_cased", "_entries", "_kept", "_used")

    def __init__(
        self, entries: Mapping[str, Any] | None = None, answers: Mapping[str, RememberedAnswer] | None = None
    ) -> None:
        self._entries = SortedMap({key: json_text(value) for key, value in (entries or {}).items()})
        self._answers = SortedMap(answers)
        self._used = SortedMap(dict.fromkeys(_client_keys(answers or ()), True))
        self._kept = len(self._answers)
        self._cased: SortedMap | None = None

    @staticmethod
    def of_texts(texts: Mapping[str, str], answers: Mapping[str, RememberedAnswer]) -> CatalogState:
        """A state from values as JSON text, in the form of `json_text`; null is not allowed."""
        made = CatalogState(answers=answers)
        made._entries = SortedMap(texts)
        return made

    def get(self, key: str) -> Any:
        """The value of an entry; None if there is none."""
        text = self._entries.get(key)
        return None if text is None else _decode(text)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def under(self, prefix: str, after: str = "") -> Iterator[tuple[str, Any]]:
        """The entries with this key prefix and after `after`, in order.   Cost: proportional to what is consumed."""
        for key, text in self._under(prefix, after):
            yield key, _decode(text)

    def keys_under(self, prefix: str, after: str = "") -> Iterator[str]:
        """The keys of `under`, without decoding values."""
        return (key for key, _ in self._under(prefix, after))

    def _under(self, prefix: str, after: str) -> Iterator[tuple[str, str]]:
        for key, text in self._entries.items(max(prefix, after)):
            if not key.startswith(prefix):
                return
            if key != after:
                yield key, text

    def answered(self, id_: str) -> RememberedAnswer | None:
        """The answer to a granted request."""
        found: RememberedAnswer | None = self._answers.get(id_)
        return found

    def is_used(self, key: str) -> bool:
        """Whether any granted request had this id of a client."""
        return key in self._used

    def cased_folders(self, prefix: str) -> Iterator[str]:
        """The folders with upper-case letters whose `cased_key` begins with `prefix`. Most catalogs have none.

        Cost: the first call reads all folders; later states inherit the result.
        """
        if self._cased is None:
            found = (key for kind in (LIVE, PURGED) for key in self.keys_under(f"{kind}/"))
            self._cased = SortedMap(dict.fromkeys(sorted(filter(None, map(cased_key, found))), True))
        for key, _ in self._cased.items(prefix):
            if not key.startswith(prefix):
                return
            yield key.partition(MARK)[2]

    def after(self, rows: Iterable[Row], at: str) -> CatalogState:
        """The state after rows that were published at that time.   Cost: proportional to their changes."""
        entries, answers, used, cased = self._entries, self._answers, self._used, self._cased
        for row in rows:
            for change in row.changes:
                if change.key != ACTOR:
                    gone = change.value is None
                    entries = entries.without(change.key) if gone else entries.put(change.key, json_text(change.value))
                    if cased is not None and (mark := cased_key(change.key)) is not None:
                        cased = _without_folder(cased, entries, mark) if gone else cased.put(mark, True)
            answers = answers.put(row.id, RememberedAnswer(row.what, at, row.result))
            for key in _client_keys([row.id]):
                used = used.put(key, True)
        return _state(entries, answers, used, self._kept, cased)

    def forgetting(self, at: str) -> CatalogState:
        """The state without expired answers, as of the time `at` of the newest commit.

        Cost: proportional to the number of answers.
        """
        minted, given = _oldest(at, MINTED_LIFETIME), _oldest(at, ID_LIFETIME)
        kept = {
            id_: answer
            for id_, answer in self._answers.items()
            if answer.at >= (minted if id_.startswith(MINTED) else given)
        }
        used = SortedMap(dict.fromkeys(_client_keys(kept), True))
        return _state(self._entries, SortedMap(kept), used, len(kept), self._cased)

    def tidied(self, at: str) -> CatalogState:
        """`forgetting`, if the number of answers has grown enough since the last time."""
        return self.forgetting(at) if len(self._answers) > 2 * self._kept + TIDY_ABOVE else self

    def entries(self) -> dict[str, Any]:
        """Every entry, in order.   Cost: all are decoded."""
        return {key: _decode(text) for key, text in self._entries.items()}

    def leaves(self) -> list[Leaf]:
        """All keys in order and the JSON texts of their values, in pieces: `SortedMap.leaves`."""
        return self._entries.leaves()

    def answers(self) -> dict[str, RememberedAnswer]:
        """All remembered answers, by id.   Cost: a copy."""
        return dict(self._answers.items())


def _state(entries: SortedMap, answers: SortedMap, used: SortedMap, kept: int, cased: SortedMap | None) -> CatalogState:
    made = CatalogState.__new__(CatalogState)
    made._entries, made._answers, made._used, made._kept, made._cased = entries, answers, used, kept, cased
    return made


def cased_key(key: str) -> str | None:
    """For the key of a folder with upper-case letters: its `folded` form, a mark, and the folder; else None."""
    if not key.startswith((f"{LIVE}/", f"{PURGED}/")):
        return None
    root = key[2:]
    name = folded(root)
    return f"{name}{MARK}{root}" if name != root else None


def _without_folder(cased: SortedMap, entries: SortedMap, mark: str) -> SortedMap:
    """A folder may be released as a live one and recorded as a purged one by the same request."""
    root = mark.partition(MARK)[2]
    return cased if any(f"{kind}/{root}" in entries for kind in (LIVE, PURGED)) else cased.without(mark)


def scoped(key: str, digest: str) -> str:
    """The id of a request: a client's id, and a digest of the request."""
    return f"{key}.{digest}"


def _client_keys(ids: Iterable[str]) -> set[str]:
    """The clients' ids in scoped ids; generated ones contain none."""
    return {key for id_ in ids if (key := id_.rpartition(".")[0])}


def is_remembered(id_: str, told_at: str, at: str) -> bool:
    """Whether an id is still remembered at a time. Times are the store's; times of commits never decrease."""
    return told_at >= _oldest(at, MINTED_LIFETIME if id_.startswith(MINTED) else ID_LIFETIME)


def _oldest(at: str, lifetime: timedelta) -> str:
    return time_text(moment(at) - lifetime)


def time_text(at: datetime) -> str:
    """A time as text, as in commits: UTC, fixed width, so that it sorts."""
    return at.isoformat(timespec="microseconds")


# ---- names, entries and folders ----

Kind = Literal["n", "t", "v"]
Namespace = tuple[str, ...]

NAME_CHARACTERS_MAX = 255
LEVELS_MAX = 16
SLUG_CHARACTERS_MAX = 40

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_NOT_PLAIN = re.compile(r"[^a-z0-9_]+")


def check_name(name: object, what: str = "name") -> str:
    """`name`, if it is valid for a table, a view or a level of a namespace.   Raises: Invalid, with the reason."""
    if not isinstance(name, str) or not name:
        raise Invalid(f"a {what} must be a non-empty string")
    if len(name) > NAME_CHARACTERS_MAX:
        raise Invalid(f"a {what} has at most {NAME_CHARACTERS_MAX} characters, this one {len(name)}: {name[:40]!r}...")
    if name in (".", ".."):
        raise Invalid(
            f"the {what} {name!r} cannot be part of a URL: clients read it as a relative path", hint="choose another"
        )
    if _CONTROL.search(name):
        raise Invalid(f"the {what} {name!r} has control characters", hint="use printable characters")
    return name


def check_namespace(levels: Sequence[object]) -> Namespace:
    """The levels as a namespace.   Raises: Invalid for no levels, too many, or an invalid one."""
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise Invalid("a namespace is a list of at least one level")
    if len(levels) > LEVELS_MAX:
        raise Invalid(f"a namespace has at most {LEVELS_MAX} levels, this one {len(levels)}")
    return tuple(check_name(level, "level of a namespace") for level in levels)


def children(kind: Kind, namespace: Namespace) -> str:
    """The key prefix of everything of a kind directly in a namespace, and of nothing else."""
    return f"{kind}/{''.join(f'{_escaped(level)}/' for level in namespace)}/"


def key_of(kind: Kind, namespace: Namespace, name: str) -> str:
    """The key of a table or view in a namespace, or of a namespace in its parent."""
    return children(kind, namespace) + _escaped(name)


def alike(name: str) -> str:
    """A canonical form that is equal for names that clients confuse in URLs: those with a plus for a space."""
    return name.replace("+", " ")


def neighbours(kind: Kind, namespace: Namespace, name: str) -> str | None:
    """The key prefix of all names that could be `alike` to this one; None if there cannot be any."""
    ends = [at for at in (name.find("+"), name.find(" ")) if at >= 0]
    return children(kind, namespace) + _escaped(name[: min(ends)]) if ends else None


def name_in(key: str) -> str:
    """The name in a key: its last part."""
    return _unescaped(key.rpartition("/")[2])


def parsed(key: str) -> tuple[Namespace, str]:
    """The namespace and the name in a key."""
    path, _, name = key[2:].rpartition("/")
    return tuple(_unescaped(part) for part in path.split("/") if part), _unescaped(name)


def shown(namespace: Namespace, name: str = "") -> str:
    """The levels joined by dots, for messages."""
    return ".".join((*namespace, *((name,) if name else ())))


def slug(name: str) -> str:
    """A folder name derived from `name`: safe on every store, not unique."""
    return _NOT_PLAIN.sub("-", name.lower()).strip("-")[:SLUG_CHARACTERS_MAX].strip("-") or "x"


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2f")


def _unescaped(part: str) -> str:
    return part.replace("%2f", "/").replace("%25", "%")


LIVE, PURGED = "l", "p"
MARK = "\0"
"""It is in no name of a folder."""

Content = Literal["t", "v"]
"""Tables and views, by the first letter of their keys."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or view: its folder and its current metadata file, as paths below the warehouse."""

    root: str
    path: str
    more: tuple[str, ...] = ()

    @staticmethod
    def of(value: Sequence[str]) -> Entry:
        """The entry of a value in the state.   Raises: Corrupt for an invalid value."""
        if not isinstance(value, list | tuple) or len(value) < 2 or not all(isinstance(each, str) for each in value):
            raise Corrupt(
                f"the catalog has an invalid entry: {repr(value)[:100]}",
                hint="drop the table by its name",
            )
        root, file, *more = value
        return Entry(root, file if "/" in file else f"{root}/metadata/{file}", tuple(more))

    def value(self) -> list[Any]:
        """Its value in the state."""
        folder, _, name = self.path.rpartition("/")
        return [self.root, name if folder == f"{self.root}/metadata" else self.path, *self.more]

    def roots(self) -> tuple[str, ...]:
        """All folders of the table."""
        return (self.root, *self.more)


def find_entry(state: CatalogState, kind: Content, namespace: Namespace, name: str) -> Entry | None:
    """A table or view; None if it does not exist."""
    value = state.get(key_of(kind, namespace, name))
    return None if value is None else Entry.of(value)


def entry_in(state: CatalogState, kind: Content, namespace: Namespace, name: str) -> Entry:
    """A table or view.   Raises: NoSuchTable; NoSuchView.

    They are also raised if the namespace itself is missing: Spark requests the metadata table `ns.tbl.snapshots` as a
    table of the namespace `ns.tbl`, and continues only if the error is about the table, not the namespace.
    """
    found = find_entry(state, kind, namespace, name)
    if found is None:
        if kind == "t":
            raise NoSuchTable(f"Table does not exist: {shown(namespace, name)}")
        raise NoSuchView(f"View does not exist: {shown(namespace, name)}")
    return found


def check_namespace_exists(state: CatalogState, namespace: Namespace) -> None:
    """Check that a namespace exists.   Raises: NoSuchNamespace."""
    if namespace and key_of("n", namespace[:-1], namespace[-1]) not in state:
        raise NoSuchNamespace(f"Namespace does not exist: {shown(namespace)}")


def check_free(
    state: CatalogState, namespace: Namespace, name: str, wanted: Content | None = None, *, leaving: str | None = None
) -> None:
    """Check that a name is free; tables and views share names. `wanted`: the kind to be created; `leaving`: a key that
    is removed by the same request.

    Raises: NoSuchNamespace; AlreadyExists; Invalid for a name that clients confuse with an existing one.
    """
    check_namespace_exists(state, namespace)
    kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
    for kind, what in kinds:
        if find_entry(state, kind, namespace, name) is not None:
            other = " with same name" if wanted is not None and wanted != kind else ""
            raise AlreadyExists(f"{what}{other} already exists: {shown(namespace, name)}")
        check_alike(state, kind, namespace, name, leaving)


def check_alike(state: CatalogState, kind: Kind, namespace: Namespace, name: str, leaving: str | None = None) -> None:
    """Check that no other name of this kind differs only in a plus for a space.   Raises: Invalid.

    Java's client encodes a space in a URL as `+`, and other clients encode a plus as `+`: with two such tables, each
    client would reach the wrong one.
    """
    prefix = neighbours(kind, namespace, name)
    if prefix is None:
        return
    for key in state.keys_under(prefix):
        other = name_in(key)
        if other != name and key != leaving and alike(other) == alike(name):
            raise Invalid(
                f"Cannot use the name {name!r}: clients confuse it with {other!r}, which exists in "
                f"{shown(namespace) or 'this catalog'!r}",
                hint="some clients write a space in a URL as +; choose a name that differs in another character",
            )


def location_of(state: CatalogState, namespace: Namespace) -> str | None:
    """The `location` of a namespace: the folder of its tables."""
    properties = state.get(key_of("n", namespace[:-1], namespace[-1])) if namespace else None
    return properties.get("location") if isinstance(properties, Mapping) else None


def is_empty(state: CatalogState, namespace: Namespace) -> bool:
    """Whether a namespace holds nothing."""
    kinds: tuple[Kind, ...] = ("n", "t", "v")
    return not any(next(state.keys_under(children(kind, namespace)), None) for kind in kinds)


def reserve(state: CatalogState, roots: Iterable[str], own: Sequence[str] = ()) -> tuple[Change, ...]:
    """Reserve folders for a table; it has those in `own` already.

    Raises: Invalid, if one overlaps with another's. Upper and lower case are the same: some stores ignore them in the
    policies of credentials (SeaweedFS 4.48 does).
    """
    wanted = [root for root in dict.fromkeys(roots) if root not in own]
    for root in wanted:
        taken = _taken(state, root, {*own})
        if taken is not None:
            raise Invalid(
                f"the location {root!r} overlaps with {taken!r}, which belongs to another table",
                hint="use a separate folder for each table, or leave the location out",
            )
    return tuple(Change(f"{LIVE}/{root}", 1) for root in wanted)


def check_not_of_others(state: CatalogState, path: str, own: Sequence[str]) -> None:
    """Check that a file is in no folder of another table than that with the folders `own`.   Raises: Invalid."""
    other = _taken_in_same_case(state, path, {*own})
    if other is not None:
        raise Invalid(f"the file {path!r} is in the folder {other!r}, which belongs to another table")


def check_apart(state: CatalogState, roots: Sequence[str]) -> None:
    """Check that the folders of a table differ from those of others by more than upper and lower case.

    In tables of earlier versions `reserve` did not see to that.   Raises: Unsupported.
    """
    for root in roots:
        other = _taken_in_other_case(state, root, {*roots})
        if other is not None:
            raise Unsupported(
                f"the folder {root!r} overlaps with {other!r}, which belongs to another table, but for upper and lower "
                "case; a store may ignore that in policies",
                hint="use remote signing for this table",
            )


def free_in(state: CatalogState) -> Callable[[str], bool]:
    """A function that tells whether a folder belongs to no table in this state."""
    return lambda root: _taken(state, root, set()) is None


def overlapping(owners: Sequence[Sequence[str]]) -> tuple[str, str] | None:
    """Two equal or nested folders of different owners; None if there are none."""
    owner_of: dict[str, int] = {}
    for owner, roots in enumerate(owners):
        for root in map(folded, roots):
            if owner_of.setdefault(root, owner) != owner:
                return root, root
    for root, owner in owner_of.items():
        for above in _above(root):
            if owner_of.get(above, owner) != owner:
                return above, root
    return None


def _above(root: str) -> list[str]:
    """The folder and its ancestors, the outermost first."""
    parts = root.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def folded(root: str) -> str:
    """A form that is equal for folders that differ only in upper and lower case, however a store compares those."""
    return root.replace("\u0130", "i").casefold()


def _taken(state: CatalogState, root: str, own: set[str]) -> str | None:
    """A folder of another table that is equal to this one, contains it, or is inside it; whatever the case is."""
    found = _taken_in_same_case(state, root, own)
    return found if found is not None else _taken_in_other_case(state, root, own)


def _taken_in_other_case(state: CatalogState, root: str, own: set[str]) -> str | None:
    name = folded(root)
    if name != root and (found := _taken_in_same_case(state, name, own)) is not None:
        return found
    prefixes = (*(f"{above}{MARK}" for above in _above(name)), f"{name}/")
    others = (other for prefix in prefixes for other in state.cased_folders(prefix) if other not in own)
    return next(others, None)


def _taken_in_same_case(state: CatalogState, root: str, own: set[str]) -> str | None:
    kinds = [kind for kind in (LIVE, PURGED) if next(state.keys_under(f"{kind}/"), None)]
    for above in _above(root):
        if above not in own and any(f"{kind}/{above}" in state for kind in kinds):
            return above
    for kind in kinds:
        for key in state.keys_under(f"{kind}/{root}/"):
            if key[2:] not in own:
                return key[2:]
    return None


class NoSuchNamespace(Missing):
    """There is no namespace of that name."""

    default_hint = "check the name, or create the namespace first; each level of a nested one is created separately"


class NoSuchTable(Missing):
    """There is no table of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class NoSuchView(Missing):
    """There is no view of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class AlreadyExists(Conflict):
    """A namespace, table or view of that name exists."""

    default_hint = "choose another name, or drop what is there first"


class NamespaceNotEmpty(Conflict):
    """The namespace is not empty."""

    default_hint = "drop what it holds first"


class CommitFailed(Conflict):
    """A requirement of the commit does not hold: another client has committed."""

    default_hint = "load the table again and commit again"


def listed(request: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A list in a commit. `updates` is required by the specification.   Raises: Invalid."""
    found = request.get(name)
    if found is None and name != "updates":
        return []
    if not isinstance(found, list | tuple):
        raise Invalid(f"Cannot parse {name} from non-array: {name} must be a list")
    if len(found) > most:
        raise Invalid(f"the commit has {len(found)} {name}; at most {most} are taken", hint="commit in several steps")
    return [*found]


def check_fresh(number: int, last: int, parent: int | None) -> None:
    """Check that a snapshot is not stale, by its sequence number and the table's last one.

    A snapshot without a parent is never stale: a concurrent CREATE OR REPLACE TABLE adds one. The table's last number
    does not decrease for it.   Raises: CommitFailed, with the message of the reference implementation.
    """
    if number <= last and parent is not None:
        raise CommitFailed(f"Cannot add snapshot with sequence number {number} older than last sequence number {last}")


# ---- publication: may a batch be published, and the head that follows ----
#
# The head alone decides. A batch is published once: its path is looked up in `applied` first, so that a repeated or
# late request gets the answer of the successful one (counterexamples 2 to 5).

APPLIED_MAX = 16
TAIL_BYTES_MAX = 256 << 10
PATH_CHARACTERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """The batch is not published and never will be, by the head. `stale`: by its token, else by its version."""

    stale: bool
    message: str


@dataclass(frozen=True, slots=True)
class Go:
    """The batch may be published on exactly this head."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class NoHead:
    """There is no head: only an epoch may create the first one."""


@dataclass(frozen=True, slots=True)
class PartlyPublished:
    """Some of the paths were published and others not: no leader sends such a request."""


def applied_in(head: CatalogHead | None, paths: Sequence[str]) -> Publication | PartlyPublished | None:
    """How these batches were published, as far as the head remembers; None if it remembers none of them."""
    known = {applied.path: applied for applied in (head.applied if head else ())}
    found = [known[path] for path in paths if path in known]
    if not found:
        return None
    if len(found) < len(paths) or len({each.version for each in found}) > 1:
        return PartlyPublished()
    return Publication(found[0].version, found[0].commit)


def classify(head: CatalogHead | None, batches: Sequence[LedgerBatch], token: int) -> Go | RefusedBatch | NoHead:
    """Whether batches that the head does not remember may be published on it."""
    epoch = any(batch.base_version is None for batch in batches)
    for batch in batches:
        if batch.token != token:
            return RefusedBatch(True, f"the batch was written with token {batch.token}, not {token}")
    if head is None:
        return Go(_rows(batches)) if epoch else NoHead()
    if epoch:
        if token <= head.token:
            return RefusedBatch(True, f"token {token} is not above {head.token}, which has led already")
    elif token != head.token:
        return RefusedBatch(True, f"token {head.token} leads, not {token}")
    elif any(batch.base_version != head.version for batch in batches):
        return RefusedBatch(False, f"the batch was validated on another version than {head.version}")
    return Go(_rows(batches))


def unusable(rows: Sequence[Row]) -> str | None:
    """Why readers could not use these rows; None if they can.

    A published row stays in the state for ever, so it is checked before. Keys of unknown kinds are ignored: readers of
    this version do not use them.
    """
    for row in rows:
        if not row.id or not row.what:
            return "a row has no id, or does not say what it is"
        for change in row.changes:
            wrong = _wrong(change)
            if wrong is not None:
                return f"the entry {change.key[:100]!r} of request {row.id[:100]!r} {wrong}"
    return None


def _wrong(change: Change) -> str | None:
    """What is wrong with a change: its key, or its value."""
    kind, slash, rest = change.key.partition("/")
    if not slash or kind not in ("n", "t", "v", "l", "p"):
        return None
    if kind in ("l", "p"):
        if not _is_path(rest):
            return "is not a folder"
        return None if change.value in (None, 1) else "has an invalid value for a folder"
    if not _is_name_key(change.key):
        return "has an invalid name of a table, view or namespace"
    value = change.value
    if value is None:
        return None
    if kind == "n":
        sound = isinstance(value, Mapping) and all(isinstance(each, str) for each in (*value.keys(), *value.values()))
        return None if sound else "has properties that are not strings"
    if not isinstance(value, list | tuple) or len(value) < 2 or not all(isinstance(each, str) for each in value):
        return "does not name its metadata"
    return None if all(map(_is_path, value)) else "names an invalid path"


@lru_cache(maxsize=1024)
def _is_name_key(key: str) -> bool:
    """Whether a key is the key of a valid name. Cached, since leader and compactor both check it."""
    namespace, name = parsed(key)
    try:
        for level in (*namespace, name):
            check_name(level)
    except Invalid:
        return False
    kind = cast(Kind, key[0])  # checked by the caller
    return (kind == "n" or bool(namespace)) and key == key_of(kind, namespace, name)


def _is_path(path: str) -> bool:
    """Whether a text is a valid path below the warehouse: no segment is empty, `.` or `..`."""
    return len(path) <= PATH_CHARACTERS_MAX and all(part not in ("", ".", "..") for part in path.split("/"))


def _rows(batches: Sequence[LedgerBatch]) -> tuple[Row, ...]:
    return tuple(row for batch in batches for row in batch.rows)


@dataclass(frozen=True, slots=True)
class Publish:
    """One attempt to publish: the parts of the new head."""

    paths: tuple[str, ...]
    rows: tuple[Row, ...]
    token: int
    at: str
    commit: Link
    last_id: str
    snapshot: SnapshotRef | None
    """A new snapshot: its commits are removed from the tail. It may include these rows."""


def links_after(head: CatalogHead | None) -> tuple[Link, ...]:
    """The links of the next commit: to the last one, then for each power of two to its last multiple (a skip list).

    So any older commit is reached in a number of steps that is logarithmic in its distance.
    """
    if head is None or not head.links:
        return ()
    kept: list[Link] = [head.links[0]]
    step = 2
    while step <= head.links[0].version:
        wanted = head.links[0].version // step * step
        kept += [link for link in head.links if link.version == wanted and link not in kept]
        step *= 2
    return tuple(kept)


def next_head(head: CatalogHead | None, publish: Publish) -> CatalogHead:
    """The head after a publication."""
    version = publish.commit.version
    applied = [
        *(head.applied if head else ()),
        *(AppliedBatch(path, version, publish.commit.id) for path in publish.paths),
    ]
    snapshot = publish.snapshot or (head.snapshot if head else None)
    tail = (*(head.tail if head else ()), Tail(version, publish.at, publish.rows))
    return CatalogHead(
        version=version,
        token=publish.token,
        at=publish.at,
        links=(publish.commit, *links_after(head)),
        snapshot=snapshot,
        tail=tuple(each for each in tail if snapshot is None or each.version > snapshot.version),
        applied=tuple(applied[-APPLIED_MAX:]),
        last_id=publish.last_id,
        gc_floor=head.gc_floor if head else "",
    )


def commit_of(head: CatalogHead, domain: str) -> CommitRecord | None:
    """The record of the head's own commit; None if a snapshot contains its rows: then it is written already."""
    if not head.tail:
        return None
    return CommitRecord(
        domain=domain,
        id=head.links[0].id,
        version=head.version,
        token=head.token,
        at=head.at,
        paths=tuple(applied.path for applied in head.applied if applied.version == head.version),
        rows=head.tail[-1].rows,
        links=head.links[1:],
        snapshot=head.snapshot,
    )


def link_to(commit: CommitRecord) -> Link:
    """The link to a commit record."""
    return Link(commit.version, commit.id, digest_of(records.encode(commit)))


def _sealed(head: CatalogHead) -> CatalogHead:
    bare = msgspec.structs.replace(head, seal="")
    return msgspec.structs.replace(bare, seal=digest_of(records.encode(bare)))


def _unsealed(data: bytes, what: str) -> CatalogHead:
    sealed = records.decode(data, CatalogHead, what=what)
    head = msgspec.structs.replace(sealed, seal="")
    if sealed.seal != digest_of(records.encode(head)):
        raise Corrupt(f"{what} was modified: its digest differs", hint="restore it from a backup")
    return head


HEADS: Codec[CatalogHead] = Codec(CatalogHead, _sealed, _unsealed)
"""The stored form of a head: with its seal."""
