"""Nodes that work offline, each on its own directory, and a supervisor that syncs them with the bucket.

Read `records` for the stored formats, `decide` for the rules, `log` for journals (a note precedes its effect) and logs,
`up` and `down` for the two cycles, `apply` for what both do with one line, `supervisor` for the loop.
"""

from limpet.queue.sync.apply import Collision, Cycle, RemoteLeases
from limpet.queue.sync.decide import RemoteFleet
from limpet.queue.sync.log import ClientLog, Outbox
from limpet.queue.sync.records import RemoteLease
from limpet.queue.sync.supervisor import Blocked, Disconnected, Reconnected, Supervisor, SyncEvent

__all__ = [
    "Blocked",
    "ClientLog",
    "Collision",
    "Cycle",
    "Disconnected",
    "Outbox",
    "Reconnected",
    "RemoteFleet",
    "RemoteLease",
    "RemoteLeases",
    "Supervisor",
    "SyncEvent",
]
