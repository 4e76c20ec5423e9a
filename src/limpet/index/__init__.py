"""The index: records by key, sharded by hash, compiled by any number of processes."""

from limpet.index.compiler import CompileReport
from limpet.index.decide import shard_id
from limpet.index.describe import IndexStats
from limpet.index.index import Index
from limpet.index.maintain.import_existing import AdoptReport
from limpet.index.maintain.offline import PurgeReport, ReshardReport
from limpet.index.maintain.verify import VerifyReport
from limpet.index.reader import DamagedShardWarning
from limpet.index.sql import Rows
from limpet.index.storage import Count, IndexStorage, Manifest, WaitingShards
from limpet.store.sources import BadFile

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
