"""The index: records by key, sharded by hash, compiled by anybody."""

from limpet.index.adopt import AdoptReport
from limpet.index.compiler import CompileReport
from limpet.index.decide import shard_id
from limpet.index.findings import VerifyReport
from limpet.index.index import Index
from limpet.index.manifest import Count, Manifest
from limpet.index.purge import PurgeReport
from limpet.index.reader import DamagedShardWarning
from limpet.index.reshard import ReshardReport
from limpet.index.rows import Rows
from limpet.index.stats import IndexStats
from limpet.index.storage import Storage, Work

__all__ = [
    "AdoptReport",
    "CompileReport",
    "Count",
    "DamagedShardWarning",
    "Index",
    "IndexStats",
    "Manifest",
    "PurgeReport",
    "ReshardReport",
    "Rows",
    "Storage",
    "VerifyReport",
    "Work",
    "shard_id",
]
