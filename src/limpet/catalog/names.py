"""Names of namespaces, tables and views, and the keys of the state that they become.

A namespace is a tuple of levels. The keys of its children begin alike and go one level deep, so that a listing is one
run of neighbours: `n/a//b` is the namespace `b` in `a`, and `t/a/b//c` the table `c` in `a`, `b`. Levels are never
empty and their slashes are escaped, so no two names share a key and no `//` can be forged.

In a URL a `+` is a space for some clients and a plus for others. The service reads it as a space, and names that differ
in nothing else (`alike`) never lie in one namespace: see docs/design/0006-catalog.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from limpet.errors import Invalid

Kind = Literal["n", "t", "v"]
Namespace = tuple[str, ...]

NAME_CHARACTERS_MAX = 255
LEVELS_MAX = 16
SLUG_CHARACTERS_MAX = 40

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_NOT_PLAIN = re.compile(r"[^a-z0-9_]+")


def check_name(name: object, what: str = "name") -> str:
    """`name`, if a table, view or level of a namespace may have it.   Raises: Invalid, saying why not."""
    if not isinstance(name, str) or not name:
        raise Invalid(f"a {what} must be a non-empty string")
    if len(name) > NAME_CHARACTERS_MAX:
        raise Invalid(f"a {what} has at most {NAME_CHARACTERS_MAX} characters, this one {len(name)}: {name[:40]!r}...")
    if name in (".", ".."):
        raise Invalid(
            f"the {what} {name!r} cannot be part of a URL: clients take it for a folder", hint="choose another"
        )
    if _CONTROL.search(name):
        raise Invalid(f"the {what} {name!r} has control characters", hint="use printable characters")
    return name


def check_namespace(levels: Sequence[object]) -> Namespace:
    """The levels as a namespace.   Raises: Invalid for none, too many, or a level that no name may be."""
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise Invalid("a namespace is a list of at least one level")
    if len(levels) > LEVELS_MAX:
        raise Invalid(f"a namespace has at most {LEVELS_MAX} levels, this one {len(levels)}")
    return tuple(check_name(level, "level of a namespace") for level in levels)


def children(kind: Kind, namespace: Namespace) -> str:
    """What the keys of everything of a kind directly in a namespace begin with, and no other key does."""
    return f"{kind}/{''.join(f'{_escaped(level)}/' for level in namespace)}/"


def key_of(kind: Kind, namespace: Namespace, name: str) -> str:
    """The key of a table or view in a namespace, or of a namespace in its parent."""
    return children(kind, namespace) + _escaped(name)


def alike(name: str) -> str:
    """The same text for all names that some client cannot tell apart in a URL: those with a plus for a space."""
    return name.replace("+", " ")


def neighbours(kind: Kind, namespace: Namespace, name: str) -> str | None:
    """What the keys of all names begin with that could be `alike` with this one; None if no other name is."""
    ends = [at for at in (name.find("+"), name.find(" ")) if at >= 0]
    return children(kind, namespace) + _escaped(name[: min(ends)]) if ends else None


def name_in(key: str) -> str:
    """The last part of a key: the name itself."""
    return _unescaped(key.rpartition("/")[2])


def parsed(key: str) -> tuple[Namespace, str]:
    """The namespace and name behind a key."""
    path, _, name = key[2:].rpartition("/")
    return tuple(_unescaped(part) for part in path.split("/") if part), _unescaped(name)


def shown(namespace: Namespace, name: str = "") -> str:
    """For messages: the levels joined by dots."""
    return ".".join((*namespace, *((name,) if name else ())))


def slug(name: str) -> str:
    """A folder name that reminds of `name`: safe on every store, and not unique."""
    return _NOT_PLAIN.sub("-", name.lower()).strip("-")[:SLUG_CHARACTERS_MAX].strip("-") or "x"


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2f")


def _unescaped(part: str) -> str:
    return part.replace("%2f", "/").replace("%25", "%")
