"""The audit chain: every commit there was, from the head backwards. It is walked, never listed.

Each commit record names the one before it by digest, so nothing in the past can be changed without its showing. It
names older ones too, at ever greater distances: beyond a damaged record the walk goes on from one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from limpet.catalog.decide import commit_of
from limpet.catalog.records import Commit, Head, Link
from limpet.catalog.state import State
from limpet.catalog.storage import Storage
from limpet.errors import Corrupt, Missing


@dataclass(frozen=True, slots=True)
class Checked:
    """What a walk of the chain found: how many commits, the oldest version kept, and everything that is wrong."""

    commits: int
    oldest: int
    faults: tuple[str, ...] = ()

    @property
    def broken(self) -> str | None:
        """The first thing that is wrong; None if nothing is."""
        return self.faults[0] if self.faults else None


def log(storage: Storage, head: Head, damaged: Callable[[Corrupt], None] | None = None) -> Iterator[Commit]:
    """The commits, the newest first, as far back as they are kept.   Cost: 1 GET each.

    Raises: Corrupt; with `damaged` that is called instead, and the walk goes on with the next older commit that a
    sound one names.
    """
    ahead = {link.version: link for link in head.links}
    while ahead:
        link = ahead.pop(max(ahead))
        try:
            commit = _read(storage, head, link)
        except Corrupt as error:
            if damaged is None:
                raise
            damaged(error)
            continue
        if commit is None:
            return
        yield commit
        ahead |= {each.version: each for each in commit.links if each.version < commit.version}


def find(storage: Storage, head: Head, is_at_or_before: Callable[[Commit], bool]) -> Commit:
    """The newest commit for which it holds; it must hold for every older one too.

    Raises: Missing if there is none, or it is no longer kept; Corrupt.
    Cost: 1 GET a step; about as many steps as the square of the number of bits of the distance.
    """
    newer: Commit | None = None
    links = head.links
    while links:
        commit = None
        for link in reversed(links):  # the farthest first: leap as far back as does not leap over it
            commit = _read(storage, head, link)
            if commit is not None and not is_at_or_before(commit):
                break
        else:
            if commit is None:
                break
            return commit
        newer, links = commit, commit.links
    if newer is None and not head.links:
        raise Missing("nothing was ever published here")
    raise Missing("the catalog was never so, or that is no longer kept", hint="`limpet catalog log` shows what is kept")


def state_of(storage: Storage, head: Head, commit: Commit) -> State:
    """The state right after a commit: the snapshot that it names, and the rows since.

    Raises: Missing if what it needs is no longer kept; Corrupt.   Cost: 1 GET + 1 for each commit since the snapshot.
    """
    base = commit.snapshot.version if commit.snapshot else 0
    commits = [commit] if commit.version > base else []
    links = commit.links
    while links and links[0].version > base:
        before = _read(storage, head, links[0])
        if before is None:
            raise Missing(f"version {links[0].version} is no longer kept")
        commits.append(before)
        links = before.links
    state = storage.snapshot(commit.snapshot)
    for each in reversed(commits):
        state = state.after(each.rows, each.at)
    return state


def verify(storage: Storage, head: Head) -> Checked:
    """Walk the whole chain and compare every digest, version, token and time; name all that is wrong.

    Cost: 1 GET a commit.
    """
    commits, oldest, token, at = 0, head.version + 1, head.token, head.at
    faults: list[str] = []
    try:
        with suppress(Missing):  # it is written before the next commit
            storage.commit(head.links[0])
    except Corrupt as error:
        faults.append(str(error))
    for commit in log(storage, head, lambda error: faults.append(str(error))):
        if commit.version != oldest - 1:
            faults.append(f"after version {oldest} comes {commit.version}")
        if commit.token > token or commit.at > at:
            faults.append(f"version {commit.version} has a later token or time than its successor")
        commits, oldest, token, at = commits + 1, commit.version, commit.token, commit.at
    return Checked(commits, oldest, tuple(dict.fromkeys(faults)))


def _read(storage: Storage, head: Head, link: Link) -> Commit | None:
    """A commit that another one names; None if it is so old that it is no longer kept.

    Counterexample 11: GC may have raised the floor since `head` was read, so the newest one says what must be there.
    """
    newest = commit_of(head, storage.keys.domain) if link == head.links[0] else None
    if newest is not None:
        if storage.link(newest) != link:
            raise Corrupt(f"{storage.keys.head} does not hold the commit that it names")
        return newest
    try:
        return storage.commit(link)
    except Missing:
        if link.id < _floor(storage, head, link):
            return None
        raise Corrupt(f"the commit of version {link.version} is missing") from None


def _floor(storage: Storage, head: Head, link: Link) -> str:
    """The floor of names that are kept; it may have risen since the head was read (counterexample 11)."""
    if link.id < head.gc_floor:
        return head.gc_floor
    seen = storage.head().read()
    return seen.value.gc_floor if seen else ""
