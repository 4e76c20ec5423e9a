"""A run, told so that a person can follow it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from limpet.sim.world import Event, World

__all__ = ["describe", "tell"]


def tell(world: World) -> Iterable[str]:
    """The lines of the story."""
    yield f"seed {world.seed}: {world.calls} store calls, {len(world.faults)} faults, {world.now_s:.0f} virtual s"
    yield from map(_line, world.trace)


def _line(event: Event) -> str:
    struck = f"  << {event.fault}" if event.fault else ""
    about = " ".join(part for part in (event.key, describe(event.detail)) if part)
    return f"{event.at_s:9.3f}  {event.who:<9} {event.what:<13} {about}  -> {event.result}{struck}".rstrip(" ->")


def describe(detail: str | bytes) -> str:
    """What a body says, in a few words."""
    if isinstance(detail, str):
        return detail
    if not detail.startswith(b"{"):
        return repr(detail.decode(errors="replace").replace("\x1f", "|"))
    fields = msgspec.json.decode(detail.split(b"\n", 1)[0])
    if not isinstance(fields, dict) or "seq" not in fields:
        return ""
    if "state" in fields:
        return f"[seq {fields['seq']}: {fields['state']}, token {fields.get('token')}, {fields.get('worker_id')}]"
    fence = fields.get("fence")
    token = f", token {fence['token']}" if fence else ""
    return f"[seq {fields['seq']}: {fields.get('value')!r}{token}]"
