"""The thorough examination of a store: what `limpet doctor` shows.

All objects lie below `probe/` and are deleted at the end, also when a check fails.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from limpet.errors import LimpetError, Unsupported
from limpet.runtime import Runtime, system
from limpet.store.api import Store
from limpet.store.checks import CHECKS, Lab, Latency, Planned
from limpet.store.probe import Findings


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried. Limpet must not be used where a `required` one failed."""

    name: str
    ok: bool
    required: bool
    detail: str
    hint: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole examination; `ok` when every required check is."""

    ok: bool
    checks: list[Check]
    latency: list[Latency]
    findings: Findings | None


def examine(
    store: Store,
    *,
    rounds: int = 3,
    progress: Callable[[Check], None] = lambda check: None,
    runtime: Runtime | None = None,
) -> Report:
    """Try everything that Limpet relies on; `progress` gets each check as it ends.

    Raises: Denied, Unavailable or OutcomeUnknown of the first request; later errors are failed checks.
    Cost: three rounds take some 1,000 requests and 8 MiB each way. Crash: objects below probe/ remain.
    """
    lab = Lab(store, runtime or system(), rounds)
    checks: list[Check] = []

    def make(planned: Planned) -> None:
        checks.append(_made(lab, planned))
        progress(checks[-1])

    store.put(lab.key("first", "first"), b"{}")
    try:
        for planned in CHECKS:
            make(planned)
    finally:
        make(Planned("clean-up", False, _clean_up))
    ok = all(check.ok for check in checks if check.required)
    return Report(ok=ok, checks=checks, latency=lab.latency, findings=lab.findings)


def _made(lab: Lab, planned: Planned) -> Check:
    name, required, work = planned
    try:
        return Check(name=name, ok=True, required=required, detail=work(lab))
    except LimpetError as error:
        return Check(name=name, ok=False, required=required, detail=str(error), hint=error.hint)


def _clean_up(lab: Lab) -> str:
    errors = [error for error in lab.store.delete_many(lab.keys).values() if error is not None]
    if errors:
        raise errors[0]
    root = next(iter(lab.keys)).partition("/")[0]
    back = [key for key in lab.listed(root) if key in lab.keys]
    if back:
        raise Unsupported(
            f"{len(back)} of {len(lab.keys)} deleted objects are still there, {back[0]} among them",
            hint=f"delete what is left below {root}/ by hand",
        )
    return f"{len(lab.keys)} objects deleted"
