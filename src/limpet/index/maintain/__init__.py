"""Operations on a whole index: verify and repair it, reshard it, purge tombstones, import existing record files."""

from limpet.index.maintain.import_existing import AdoptReport
from limpet.index.maintain.offline import PurgeReport, ReshardReport
from limpet.index.maintain.verify import Finding, VerifyReport

__all__ = ["AdoptReport", "Finding", "PurgeReport", "ReshardReport", "VerifyReport"]
