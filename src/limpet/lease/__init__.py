"""Locks that expire if their holder crashes or is paused, with fencing tokens that refuse the writes of a late holder.

Read `decide` for the rules, `lock` for how a lease is won, `lease` for how it is kept and renewed.
"""

from limpet.lease.decide import LeaseRecord, State
from limpet.lease.lease import HeldLease, Lease, Renewable, Renewer
from limpet.lease.lock import Lock, LockState, VersionWatch, lease_cell, lock_state

__all__ = [
    "HeldLease",
    "Lease",
    "LeaseRecord",
    "Lock",
    "LockState",
    "Renewable",
    "Renewer",
    "State",
    "VersionWatch",
    "lease_cell",
    "lock_state",
]
