"""Checks that a key (a set of credentials) has the rights of a role, and no others: `limpet doctor --role`.

Every request is one that changes nothing, whether it is allowed or not. A put has a condition that no object meets, so
the server answers 403 or a failed condition. A delete names an object that does not exist. An object that Limpet may
have made (a lock, a head, `limpet.json`) is never deleted, and is put only after the server has refused another put
because of its condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from limpet.kernel.errors import Conflict, Denied, Missing, Unsupported
from limpet.kernel.keys import check
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Match, Store, Version
from limpet.kernel.store.roles import TABLE, Role, Verb, allows, grants

VERBS: tuple[Verb, ...] = get_args(Verb)
OUTSIDE = "(outside of the fleet)"
_UNWRITTEN = "warehouse/*/metadata/*.metadata.json"
_NEVER = Match(Version('"00000000000000000000000000000000"'))
_NEVER_A_GENERATION = Match(Version("1"))
"""Google Cloud's generations are times in microseconds."""


class RightCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One right: whether the role has it, and whether the key does; `may` is None if it was not tried."""

    where: str
    """A pattern of the table of roles, "" for everything; or `OUTSIDE`."""
    verb: Verb
    must: bool
    may: bool | None
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the key is right here, as far as it was tried."""
        return self.may in (None, self.must)


class RightsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may do, beside what its role may; `ok` if nothing is missing and nothing is too much."""

    ok: bool
    role: Role
    checks: list[RightCheck]


class RightSample(msgspec.Struct, frozen=True, kw_only=True):
    """One right to try: a key (a folder for `list`), and whether it may name an object that exists."""

    where: str
    verb: Verb
    key: str
    exists: bool


def samples(role: Role, mark: str, roots: Sequence[str] = ()) -> list[RightSample]:
    """A sample of every pattern in the table of roles. `mark`: a name that nothing has. `roots`: see `grants`."""
    tried = {pattern for granted in TABLE.values() for pattern in granted} | {*grants(role, roots), _UNWRITTEN}
    found = []
    for pattern in sorted(tried):
        folder = pattern.replace("*", mark).removesuffix("/")
        is_folder = not pattern or pattern.endswith("/")
        # an ending that the printed policies know: without one, a missing object is denied (see `policies`)
        leaf = f"{mark}.lock" if pattern.startswith("locks/") else f"{mark}.json"
        key = "/".join([*([folder] if folder else []), *([leaf] if is_folder else [])])
        for verb in VERBS:
            if verb != "list":
                found.append(RightSample(where=pattern, verb=verb, key=key, exists=mark not in key))
            elif is_folder:
                found.append(RightSample(where=pattern, verb=verb, key=folder, exists=True))
    return sorted(found, key=lambda sample: sample.exists)


def examine_rights(
    store: Store,
    role: Role,
    *,
    roots: Sequence[str] = (),
    outside: Store | None = None,
    by_generation: bool = False,
    runtime: Runtime | None = None,
    progress: Callable[[RightCheck], None] = lambda check: None,
) -> RightsReport:
    """Compare what the credentials of `store` may do with what `role` may.

    `roots`: the folders of the only queues that the role may use. `outside`: the bucket of a fleet below a prefix; the
    role has no rights there. `by_generation`: the store is Google Cloud, where a right to put includes one to delete.

    Raises: Unsupported if the server ignores conditions; Unavailable or OutcomeUnknown, as the store does.
    Cost: about 200 requests. Crash: nothing remains.
    """
    mark = f"doctor-{(runtime or system()).new_id()}"
    never = _NEVER_A_GENERATION if by_generation else _NEVER
    tried = [(store, sample) for sample in samples(role, mark, roots)]
    if outside is not None:
        keys: dict[Verb, str] = {verb: "" if verb == "list" else f"{mark}.json" for verb in VERBS}
        tried += [(outside, RightSample(where=OUTSIDE, verb=verb, key=keys[verb], exists=False)) for verb in VERBS]
    checks: list[RightCheck] = []
    conditional = False
    for where, sample in tried:
        must = sample.where != OUTSIDE and allows(role, sample.verb, sample.key, roots)
        may: bool | None = None
        detail = ""
        skipped = (sample.verb == "delete" and (sample.exists or (by_generation and not must))) or (
            sample.verb == "put" and sample.exists and not conditional
        )
        if not skipped:
            try:
                _try(where, sample, never)
                may = True
            except (Missing, Conflict) as answer:
                may = True
                conditional = conditional or (sample.verb == "put" and isinstance(answer, Conflict))
            except Denied as refusal:
                may, detail = False, str(refusal) if must else ""
        checks.append(RightCheck(where=sample.where, verb=sample.verb, must=must, may=may, detail=detail))
        progress(checks[-1])
    return RightsReport(ok=all(check.ok for check in checks), role=role, checks=checks)


def _try(store: Store, sample: RightSample, never: Match) -> None:
    """Send one request.   Raises: Denied; Missing or Conflict if it was allowed, as it is if nothing is raised."""
    if sample.verb == "list":
        next(iter(store.list(sample.key)), None)
        return
    key = check(sample.key)
    if sample.verb == "get":
        store.head(key)
    elif sample.verb == "delete":
        store.delete(key)
    else:
        store.put(key, b"", when=never)
        store.delete(key)
        hint = "see what `limpet doctor` says of it"
        raise Unsupported("the server accepted a put whose condition cannot hold", hint=hint)
