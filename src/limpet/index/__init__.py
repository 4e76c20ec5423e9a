"""The index: records by key, sharded by hash, compiled by anybody."""

from limpet.index.compiler import CompileReport
from limpet.index.decide import shard_id
from limpet.index.describe import IndexStats
from limpet.index.index import Index
from limpet.index.maintain.import_existing import AdoptReport
from limpet.index.maintain.purge import PurgeReport
from limpet.index.maintain.reshard import ReshardReport
from limpet.index.maintain.verify import VerifyReport
from limpet.index.reader import DamagedShardWarning
from limpet.index.sql.rows import Rows
from limpet.index.storage import Count, IndexStorage, Manifest, WaitingShards

__all__ = [
    "AdoptReport",
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
