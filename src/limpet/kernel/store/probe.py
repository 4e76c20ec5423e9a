"""Checks once per bucket, with one temporary object, that the store honours conditional writes.

A store that accepts a condition and ignores it seems to work until two processes write at the same time (F21). So the
check comes before anything depends on the store. `doctor` has the thorough checks.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, Protocol, runtime_checkable

import msgspec

from limpet.kernel.errors import Conflict, OutcomeUnknown, Unsupported
from limpet.kernel.keys import Key, probe_key
from limpet.kernel.records import Name
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Absent, Match, Store, Version, When

EtagStyle = Literal["quoted", "unquoted"]

CONDITIONS_HINT = (
    "use a directory, or a bucket that honours If-None-Match and If-Match on PUT (S3, GCS, Azure, SeaweedFS, Ceph)"
)


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What `probe_conditions` found, kept in limpet.json. `at` and `by` (the version of limpet) are for people."""

    conditional: bool
    etag_style: EtagStyle
    at: Name
    by: Name


@runtime_checkable
class _Styled(Protocol):
    etag_style: EtagStyle


def probe_conditions(store: Store, *, runtime: Runtime | None = None) -> Findings:
    """Check that `store` honours conditional writes, and find the ETag style that it expects (see `use_etag_style`).

    Raises: Unsupported, naming what the store ignores; Denied, Unavailable or OutcomeUnknown as the store does.
    Cost: 4 PUTs (1 more where the style is switched), 1 GET, 1 DELETE. Crash: one object below probe/ remains.
    """
    runtime = runtime or system()
    key = probe_key(runtime.new_id(), "quick")
    first = store.put(key, b'{"step":1}', when=Absent())
    try:
        style = _conditions(store, key, first)
    finally:
        store.delete(key)
    from importlib.metadata import version as installed  # slow to import, and needed once in a bucket's life

    at = runtime.wall().isoformat(timespec="seconds")
    return Findings(conditional=True, etag_style=style, at=at, by=f"limpet {installed('limpet')}")


def use_etag_style(store: Store, style: EtagStyle) -> bool:
    """Set the ETag style of the store, inside any wrappers; False if that store has no such setting."""
    styled = _styled(store)
    if styled is not None:
        styled.etag_style = style
    return styled is not None


def _styled(store: Store) -> _Styled | None:
    below: object = store
    while below is not None and not isinstance(below, _Styled):
        below = getattr(below, "inner", None)
    return below


def _conditions(store: Store, key: Key, first: Version) -> EtagStyle:
    ignored = []
    created = _must_refuse(store, key, b'{"step":2}', Absent())
    if created is not None:
        ignored.append("creates an object that exists (If-None-Match: *)")
    base = created or first
    style, swapped = _swap(store, key, b'{"step":3}', base)
    if _must_refuse(store, key, b'{"step":4}', Match(base)) is not None:
        ignored.append("swaps an object that has changed (If-Match)")
    if ignored:
        raise _unsupported(f"the store ignores conditions: it {' and '.join(ignored)}")
    blob = store.get(key)
    if blob.data != b'{"step":3}':
        raise _unsupported("the store did not keep an acknowledged swap, or applied one that it had to refuse")
    if blob.version != swapped:
        raise _unsupported(f"a read gives version {blob.version} for what was written as {swapped}")
    return style


def _swap(store: Store, key: Key, data: bytes, base: Version) -> tuple[EtagStyle, Version]:
    styled = _styled(store)
    before: EtagStyle = styled.etag_style if styled else "quoted"
    # Ceph RGW compares If-Match with the bare ETag, so a quoted one never matches.
    styles: list[EtagStyle] = [before, "unquoted"] if styled and before == "quoted" else [before]
    for style in styles:
        use_etag_style(store, style)
        with suppress(Conflict):
            return style, store.put(key, data, when=Match(base))
    use_etag_style(store, before)
    raise _unsupported("the store refuses a swap that names the right version")


def _must_refuse(store: Store, key: Key, data: bytes, when: When) -> Version | None:
    """None when the write was refused. An unclear answer counts as refused; the caller then reads the object."""
    with suppress(Conflict, OutcomeUnknown):
        return store.put(key, data, when=when)
    return None


def _unsupported(what: str) -> Unsupported:
    return Unsupported(what, hint=CONDITIONS_HINT)
