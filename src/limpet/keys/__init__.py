"""The only builder of object keys.

A key is `segment/segment/...`. Rooms never join strings themselves: they call a function here, so that a user's name
cannot climb out of its prefix, alias another name, or be refused by one store and taken by the next (F26, F28).
"""

from limpet.keys.catalog import CatalogKeys, is_ulid
from limpet.keys.index import INDEXES, IndexKeys, digits, single_stamp
from limpet.keys.names import (
    BACKUP,
    BACKUPS,
    CELLS,
    FLEET,
    LOCKS,
    Key,
    backup_list_key,
    cell_key,
    check,
    check_prefix,
    clock_key,
    disk_name,
    encoded,
    from_disk_name,
    is_own_path,
    join,
    lock_key,
    name_of,
    probe_key,
    segment,
)
from limpet.keys.queue import QUEUES, QueueKeys, QueuePlace, is_minted, queue_at, queue_place
from limpet.keys.sync import CURSORS, NODE, OUTBOX, SUPERVISOR, SYNC, cursor_key, log_key, log_of, outbox_key

__all__ = [
    "BACKUP",
    "BACKUPS",
    "CELLS",
    "CURSORS",
    "FLEET",
    "INDEXES",
    "LOCKS",
    "NODE",
    "OUTBOX",
    "QUEUES",
    "SUPERVISOR",
    "SYNC",
    "CatalogKeys",
    "IndexKeys",
    "Key",
    "QueueKeys",
    "QueuePlace",
    "backup_list_key",
    "cell_key",
    "check",
    "check_prefix",
    "clock_key",
    "cursor_key",
    "digits",
    "disk_name",
    "encoded",
    "from_disk_name",
    "is_minted",
    "is_own_path",
    "is_ulid",
    "join",
    "lock_key",
    "log_key",
    "log_of",
    "name_of",
    "outbox_key",
    "probe_key",
    "queue_at",
    "queue_place",
    "segment",
    "single_stamp",
]
