"""Checks once per bucket, with one temporary object, that the store honours conditional writes.

A store that accepts a condition and ignores it seems to work until two processes write at the same time (F21). So the
check comes before anything depends on the store. `doctor` has the thorough checks.
"""

from __future__ import annotations

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
    if styled is None:
        return False
    styled.etag_style = style
    return True


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
        raise Unsupported(f"the store ignores conditions: it {' and '.join(ignored)}", hint=CONDITIONS_HINT)
    blob = store.get(key)
    if blob.data != b'{"step":3}':
        raise Unsupported(
            "the store did not keep an acknowledged swap, or applied one that it had to refuse", hint=CONDITIONS_HINT
        )
    if blob.version != swapped:
        raise Unsupported(
            f"a read gives version {blob.version} for what was written as {swapped}", hint=CONDITIONS_HINT
        )
    return style


def _swap(store: Store, key: Key, data: bytes, base: Version) -> tuple[EtagStyle, Version]:
    styled = _styled(store)
    try:
        return styled.etag_style if styled else "quoted", store.put(key, data, when=Match(base))
    except Conflict as refused:
        if styled is None or styled.etag_style == "unquoted":
            raise Unsupported(
                "the store refuses a swap that names the right version", hint=CONDITIONS_HINT
            ) from refused
    # Ceph RGW compares If-Match with the bare ETag, so a quoted one never matches.
    styled.etag_style = "unquoted"
    try:
        return "unquoted", store.put(key, data, when=Match(base))
    except Conflict as refused:
        styled.etag_style = "quoted"
        raise Unsupported("the store refuses a swap that names the right version", hint=CONDITIONS_HINT) from refused


def _must_refuse(store: Store, key: Key, data: bytes, when: When) -> Version | None:
    """None when the write was refused. An unclear answer counts as refused; the caller then reads the object."""
    try:
        return store.put(key, data, when=when)
    except (Conflict, OutcomeUnknown):
        return None
