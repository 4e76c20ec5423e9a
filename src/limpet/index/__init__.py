"""The index: records by key, sharded by hash, compiled by anybody."""

from limpet.index.compiler import CompileReport
from limpet.index.decide import shard_id
from limpet.index.index import Index
from limpet.index.reader import DamagedShardWarning
from limpet.index.rows import Rows
from limpet.index.stats import IndexStats

__all__ = ["CompileReport", "DamagedShardWarning", "Index", "IndexStats", "Rows", "shard_id"]
