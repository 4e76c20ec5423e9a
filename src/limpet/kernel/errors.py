"""Every error that Limpet raises on purpose.

    LimpetError
    ├── Invalid          fix the input; nothing was changed
    ├── Missing          no object of that name
    ├── NotModified      the reader already has this version
    ├── Conflict         another process wrote first, and nothing of yours is there: re-read, retry
    ├── Held             the lock is taken: wait, or come back after `until`
    ├── LeaseLost        you no longer hold it: stop
    ├── Unavailable      nothing was acknowledged: back off, retry
    ├── OutcomeUnknown   it may or may not have happened, or may happen yet: do not clean up
    ├── Corrupt          stored bytes are not what Limpet wrote: stop, report
    ├── TaskFailed       the task of a result has no value: mend its cause, retry the task
    ├── Unsupported      this store or version cannot do that: use another
    └── Denied           the credentials, the role or the disk forbid it

The kinds answer one question: what should the caller do now? Each carries a `hint` that says it in a sentence, but for
an `Invalid` or `Missing` whose line already says it: no hint repeats that the input is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial


class LimpetError(Exception):
    """Base of the tree. `str(error)` is one line, of a `TaskFailed` the first; `error.hint` says what to do."""

    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self._hint = ""
        self.hint = self.default_hint if hint is None else hint

    @property
    def hint(self) -> str:
        """What to do about it. It is the first of the notes (PEP 678), which Python prints below a traceback."""
        return self._hint

    @hint.setter
    def hint(self, text: str) -> None:
        others = [note for note in getattr(self, "__notes__", ()) if note != f"hint: {self._hint}"]
        self._hint = text
        self.__notes__ = [f"hint: {text}", *others] if text else others


class Invalid(LimpetError):
    """The input is wrong. Nothing was changed."""


class Missing(LimpetError):
    """There is no object of that name."""


class NotModified(LimpetError):
    """The object still has the version that the reader named in `if_none_match`."""

    default_hint = "use the copy that you have"


class Conflict(LimpetError):
    """The condition of a write or read did not hold: another process wrote first."""

    default_hint = "read it again, decide again, retry"


class Held(LimpetError):
    """Another process holds the lock. `try_acquire` returns this; `acquire` and `hold` raise it."""

    default_hint = "wait for it (wait_s=...), or come back later"

    def __init__(self, name: str, *, by: str, until: datetime | None, token: int) -> None:
        when = f", at least until {until:%H:%M:%S} UTC" if until else ""
        super().__init__(f"lock {name!r} is held by {by}{when} (token {token})")
        self.name = name
        self.by = by
        self.until = until
        self.token = token

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle cannot pass keywords; without this a `Held` would break the process pool that it crosses.
        return partial(Held, by=self.by, until=self.until, token=self.token), (self.name,), self.__dict__


class LeaseLost(LimpetError):
    """The lease is no longer yours: it expired, was broken, or a newer token has written."""

    default_hint = "stop this work; the holder of the newer token continues it"


class Unavailable(LimpetError):
    """The store did not do it, and nothing was acknowledged."""

    default_hint = "back off and retry"


class OutcomeUnknown(LimpetError):
    """A write may have happened, or may happen yet. Reading again cannot settle it now.

    A push of many tasks that ended half-way says how far it came: `pushed` has the handles of the tasks that are there,
    and `rest` the places of the others in what was to be pushed.
    """

    default_hint = "do not clean up after it; read again later before deciding"
    pushed: Sequence[str] = ()
    rest: Sequence[int] = ()


class Corrupt(LimpetError):
    """Stored bytes are not what Limpet wrote."""

    default_hint = "stop, keep the object as it is, and report it"


class TaskFailed(LimpetError):
    """The task whose result was asked for has failed, was cancelled, or has not ended: `state` says which.

    `error` and `traceback` are those of its last attempt, in the process that ran it; the message shows both.
    """

    default_hint = "`limpet queue retry` runs it again; `limpet queue show` has all of its attempts"
    id: str = ""
    state: str = "failed"
    attempts: int = 0
    error: str | None = None
    traceback: str | None = None


class Unsupported(LimpetError):
    """This store, or this version of Limpet, cannot do what was asked."""

    default_hint = "use another store, or another version of limpet"


class Denied(LimpetError):
    """The credentials, the role or the disk do not allow it."""

    default_hint = "check the credentials and the role's rights"
