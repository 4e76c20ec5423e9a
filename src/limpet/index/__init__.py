"""The index: records by key, sharded by hash, compiled by anybody."""

from limpet.index.compiler import CompileReport
from limpet.index.decide import shard_id
from limpet.index.index import Index

__all__ = ["CompileReport", "Index", "shard_id"]
