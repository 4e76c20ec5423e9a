"""The objects of one index, and the order in which they are read.

Data moves only forward: from singles to packs or the shard, from packs to the shard. A reader that takes them in that
order, each step after the last has ended, misses nothing; an object that is gone when it is asked for was merged into
something that is read later. No name is ever used twice, so no delete, however late, can hit a newer object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from limpet.errors import Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.keys import IndexKeys, Key
from limpet.runtime import Runtime
from limpet.store.api import Blob, Put, Stat, Store

SHARD_BYTES_MAX = 2 << 30
WAITING_BYTES_MAX = 256 << 20
"""No Limpet writes a larger single or pack."""
DESCRIPTION_BYTES_MAX = 16 << 20
SENDS_MAX = 3
BACKOFF_S = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """The shards in which something waits to be compiled, by where it waits.

    `singles` was listed before `packs`. A shard in neither has everything in its base that was there before.
    """

    singles: frozenset[str]
    packs: frozenset[str]

    @property
    def shards(self) -> frozenset[str]:
        """All of them. The singles of one may have become a pack since it was listed: look for its packs too."""
        return self.singles | self.packs


NO_WORK = Work(frozenset(), frozenset())


class Storage:
    """Reads and writes objects; decides nothing."""

    def __init__(self, store: Store, keys: IndexKeys, runtime: Runtime) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime

    def work(self) -> Work:
        """Where something waits.   Cost: 2 LISTs, one of `inbox/`, then one of `packs/`, by their folders."""
        singles = frozenset(self.store.list_dirs(self.keys.inbox))
        return Work(singles, frozenset(self.store.list_dirs(self.keys.packs)))

    def singles(self, shard: str) -> list[Stat]:
        """The singles of a shard.   Cost: 1 LIST per 1,000."""
        return [*self.store.list(self.keys.inbox_of(shard))]

    def singles_of(self, shard: str, key: str) -> list[Stat]:
        """The singles of one record, the newest last.   Cost: 1 LIST per 1,000."""
        return [*self.store.list(self.keys.inbox_of(shard, key))]

    def packs(self, shard: str) -> list[Stat]:
        """The packs of a shard.   Cost: 1 LIST per 1,000."""
        return [*self.store.list(self.keys.packs_of(shard))]

    def is_pack(self, key: Key) -> bool:
        """Whether an object that waits is a pack, and no single."""
        return key.startswith(f"{self.keys.packs}/")

    def read(self, keys: Iterable[Key]) -> dict[Key, bytes]:
        """The objects that are still there: a missing one was merged, and its data lies further on.

        Raises: whatever else a read met (F23: never an empty result).   Cost: 1 GET each, a bounded number at once.
        """
        found: dict[Key, bytes] = {}
        for key, outcome in self.store.get_many(keys, size_max=WAITING_BYTES_MAX).items():
            if isinstance(outcome, Missing):
                continue
            if isinstance(outcome, LimpetError):
                raise outcome
            found[key] = outcome.data
        return found

    def waiting(self, shard: str, work: Work | None = None) -> dict[Key, bytes]:
        """What waits for a shard: its singles, then its packs. `work` may say that there is nothing to look for.

        Cost: 2 LISTs (none for what `work` rules out) + 1 GET an object.
        """
        data: dict[Key, bytes] = {}
        if work is None or shard in work.singles:
            data |= self.read([stat.key for stat in self.singles(shard)])
        if work is None or shard in work.shards:
            data |= self.read([stat.key for stat in self.packs(shard)])
        return data

    def shard(self, shard: str) -> Blob:
        """The shard as it is now.   Raises: Corrupt if it is not there: `create` wrote every one.   Cost: 1 GET."""
        try:
            return self.store.get(self.keys.shard(shard), size_max=SHARD_BYTES_MAX)
        except Missing:
            raise self.no_shard(shard) from None

    def shards(self, shards: Sequence[str]) -> dict[str, bytes]:
        """Those shards as they are now.   Raises: as `shard`.   Cost: 1 GET each, a bounded number at once."""
        found: dict[str, bytes] = {}
        outcomes = self.store.get_many([self.keys.shard(shard) for shard in shards], size_max=SHARD_BYTES_MAX)
        for shard in shards:
            outcome = outcomes[self.keys.shard(shard)]
            if isinstance(outcome, Missing):
                raise self.no_shard(shard)
            if isinstance(outcome, LimpetError):
                raise outcome
            found[shard] = outcome.data
        return found

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        try:
            self.store.head(key)
        except Missing:
            return False
        return True

    def shard_size(self, shard: str) -> int:
        """How many bytes the shard has now.   Raises: Corrupt if it is not there.   Cost: 1 HEAD."""
        try:
            return self.store.head(self.keys.shard(shard)).size
        except Missing:
            raise self.no_shard(shard) from None

    def no_shard(self, shard: str) -> Corrupt:
        """The error for a shard that is not there (F23)."""
        return Corrupt(
            f"{self.keys.shard(shard)} is missing, and an index always has all its shards",
            hint="if the index was resharded, start this program again; else restore it, see `limpet index verify`",
        )

    def add(self, key: Key, data: bytes) -> None:
        """Write an object of a name that nobody else uses; the same bytes again if no clear answer came.

        Raises: OutcomeUnknown after three sends.   Cost: 1 PUT.   Crash: there or not, whole.
        """
        for sent in range(1, SENDS_MAX + 1):
            try:
                self.store.put(key, data)
            except OutcomeUnknown:
                if sent == SENDS_MAX:
                    raise
                self.runtime.sleep(self.runtime.rng.uniform(0.5, 1.0) * BACKOFF_S * sent)
            else:
                return

    def add_many(self, puts: Sequence[Put]) -> None:
        """`add` for each, a bounded number at once.   Raises: the first error, when all have been tried."""
        for put, outcome in zip(puts, self.store.put_many(puts).values(), strict=True):
            if isinstance(outcome, OutcomeUnknown):
                self.add(put.key, put.data)
            elif isinstance(outcome, LimpetError):
                raise outcome

    def remove(self, keys: Collection[Key]) -> None:
        """Delete what was merged. What cannot be deleted now is merged again by a later run (F20).

        Cost: 1 DELETE each, a bounded number at once.
        """
        self.store.delete_many(keys)
