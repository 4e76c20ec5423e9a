"""What the catalog refuses, by the kinds that Iceberg's clients know. All of them mean: nothing was changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from limpet.errors import Conflict, LimpetError, Missing


class NoSuchNamespace(Missing):
    """There is no namespace of that name."""

    default_hint = "check the name, or create the namespace first; each level of a nested one is created by itself"


class NoSuchTable(Missing):
    """There is no table of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class NoSuchView(Missing):
    """There is no view of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class AlreadyExists(Conflict):
    """A namespace, table or view of that name is there."""

    default_hint = "choose another name, or drop what is there first"


class NamespaceNotEmpty(Conflict):
    """The namespace still holds something."""

    default_hint = "drop what it holds first"


class CommitFailed(Conflict):
    """The table is not what the client thought: somebody else has committed."""

    default_hint = "load the table again and commit again"


class NeedsMetadata(LimpetError):
    """Not for clients: a table's metadata is another file than the commit was worked out on.

    Work it out on each of `paths` by the function beside it, outside the leader, and ask again with the same id.
    """

    def __init__(self, needs: Mapping[str, Callable[[Any], Any]]) -> None:
        super().__init__(f"needs {', '.join(needs)}")
        self.needs = needs
