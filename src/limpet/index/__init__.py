"""The index: records by key, sharded by hash, compiled by any number of processes.

Read `index` (the interface), `types` (a user's type as columns), `values` and `codec` (a record as a line), `decide`
(the rules: which record wins, which shard holds it), `storage` (the objects), then a record's way: `writer` puts it,
`compiler` folds it into its shard, `reader` finds it. `sql`, `sql_tables`, `sql_rows` answer queries,
`describe` counts, `files` and `formats` import and export. `maintain` verifies, repairs, reshards and adopts.

It may import events and the kernel, and neither the queue nor the catalog. DuckDB and PyArrow are imported where they
are used.
"""

from limpet.index.compiler import CompileReport
from limpet.index.decide import shard_id
from limpet.index.describe import IndexStats
from limpet.index.index import Index
from limpet.index.maintain.import_existing import AdoptReport
from limpet.index.maintain.offline import PurgeReport, ReshardReport
from limpet.index.maintain.verify import VerifyReport
from limpet.index.reader import DamagedShardWarning
from limpet.index.sql_rows import Rows
from limpet.index.storage import Count, IndexStorage, Manifest, WaitingShards
from limpet.kernel.store.sources import BadFile

__all__ = [
    "AdoptReport",
    "BadFile",
    "CompileReport",
    "Count",
    "DamagedShardWarning",
    "Index",
    "IndexStats",
    "IndexStorage",
    "Manifest",
    "PurgeReport",
    "ReshardReport",
    "Rows",
    "VerifyReport",
    "WaitingShards",
    "shard_id",
]
