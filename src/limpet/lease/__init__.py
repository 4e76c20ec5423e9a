"""Locks whose holders die, sleep and come back, with tokens that keep the late ones out.

Read `decide` for the rules, `lock` for how a lease is won, `lease` for how it is kept, `heartbeat` for the thread.
"""

from limpet.lease.decide import LeaseRecord, State
from limpet.lease.heartbeat import Heartbeat
from limpet.lease.lease import HeldLease, Lease
from limpet.lease.lock import Lock, LockState, VersionWatch, lease_cell, lock_state

__all__ = [
    "Heartbeat",
    "HeldLease",
    "Lease",
    "LeaseRecord",
    "Lock",
    "LockState",
    "State",
    "VersionWatch",
    "lease_cell",
    "lock_state",
]
