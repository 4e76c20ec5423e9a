"""What a handler may raise to say how its task goes on."""

from __future__ import annotations

from limpet.errors import Invalid


class Retry(Exception):
    """Try this task again, after `after_s` seconds (None: after the queue's own back-off). It costs an attempt."""

    def __init__(self, reason: str = "", *, after_s: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        if after_s is not None and not after_s >= 0:
            raise Invalid(f"after_s must not be negative, and is {after_s:g}")
        self.after_s = after_s


class Fail(Exception):
    """This task cannot succeed: put it into `failed/` at once, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler gave the task up")
