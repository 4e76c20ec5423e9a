"""What an `OSError` means to the caller (F27)."""

from __future__ import annotations

import errno

from limpet.errors import Denied, Invalid, LimpetError, OutcomeUnknown, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


def failure(what: str, error: OSError) -> LimpetError:
    """The definite error for `what`: nothing was acknowledged, and nothing of it is there."""
    reason = f"{what}: {error.strerror or error}"
    if error.errno in _FULL:
        return Unavailable(f"the disk is full; {reason}", hint="free some space or raise the quota, then retry")
    if error.errno in _FORBIDDEN:
        return Denied(reason, hint="check the folder's owner and mode, and whether its disk is mounted read-only")
    if error.errno in _TOO_MANY_OPEN:
        return Unavailable(reason, hint="raise the limit of open files (ulimit -n), or use fewer threads")
    if error.errno == errno.ENOTDIR:
        return Invalid(reason, hint="a file stands where the store needs a folder; check the path of the store")
    if error.errno == errno.ELOOP:
        return Denied(
            f"{what}: {error.filename or 'its path'} is a symbolic link, and Limpet follows none below a store's root",
            hint="replace the link by what it points to (or by a bind mount), or point the store's root there",
        )
    return Unavailable(reason, hint="back off and retry; if it stays, check the disk (dmesg)")


def unsettled(what: str, error: OSError) -> OutcomeUnknown:
    """The error for a change that is visible, but may not survive a power loss."""
    return OutcomeUnknown(
        f"{what}: it is visible but may not be durable: {error.strerror or error}",
        hint="do not clean up after it; check the disk (dmesg), then read again before deciding",
    )
