"""Generates cloud policies from the table of roles: `limpet iam`.

A policy grants what the table grants, for every key that Limpet can make (a test compares the two). The clouds' policy
languages cannot express two things exactly:

- AWS: `*` also matches `/`. So `indexes/*/packs/*` includes `indexes/a/inbox/5e/packs/x`, a record with the key
  `packs`. Where the role may not write there, a Deny statement excludes it. The other extra keys are never made.
- Google Cloud: overwriting an object needs the right to delete it, so `put` includes `storage.objects.delete`.

For Amazon's own S3 a policy also requires a condition (If-Match or If-None-Match) with every put of objects that are
only ever swapped: locks, slots, heads, sequences and cells. Other servers do not know these condition keys, and would
refuse every such put.

Both clouds answer 403 instead of 404 to a caller without the right to list. Limpet must tell the two apart, so `get`
includes the right to list a key by its full name; that reveals nothing that a get does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from limpet.kernel.errors import Invalid
from limpet.kernel.keys import check_prefix, join, segment
from limpet.kernel.store.credentials import locate
from limpet.kernel.store.roles import UNWRITTEN, Role, Verb, grants, patterns

Provider = Literal["aws", "gcp"]
Json = dict[str, Any]

PROVIDERS: tuple[Provider, ...] = get_args(Provider)

_SCHEMES: dict[Provider, str] = {"aws": "s3", "gcp": "gs"}
_UNSAFE = frozenset("*?${}\"'\\")  # wildcards, policy variables, templates, and characters that end a string

_SWAPPED = ("cells/", "locks/", "manifests/", "queues/*/slots/", "sequence/")  # never put without a condition

_ACTIONS: dict[Verb, str] = {"get": "s3:GetObject", "put": "s3:PutObject", "delete": "s3:DeleteObject"}
_NAMED_BY_USERS = ("indexes/*/inbox/", "queues/*/parts/", "queues/*/pending/", "queues/*/steps/")  # as a folder

_GCP_ROLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "limpetRead": ("Get objects, list them, and learn that one is missing.", ("get", "list")),
    "limpetWrite": ("Create objects and write over them, which is to delete them too.", ("create", "delete")),
    "limpetDelete": ("Delete objects.", ("delete",)),
}
_OPERATORS_MAX = 12  # logical operators in one condition
_LISTED = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a policy applies: a bucket, or a prefix of it, without slashes at either end."""

    bucket: str
    prefix: str = ""

    def __post_init__(self) -> None:
        for text in (self.bucket, self.prefix):
            if _UNSAFE & {*text}:
                hint = "choose a name without *?${}\"'"
                raise Invalid(f"{text!r} has characters that mean something in a policy", hint=hint)
        if not self.bucket or "/" in self.bucket:
            raise Invalid(f"{self.bucket!r} is no bucket's name", hint="give the bucket alone; --prefix is apart")
        check_prefix(self.prefix)

    def at(self, root: str) -> Scope:
        """The scope of `root` below this one (see `root_of`)."""
        return Scope(self.bucket, join(self.prefix, root) if root else self.prefix)

    def below(self, pattern: str) -> str:
        """The keys of `pattern` as they are in the bucket; a folder ends in `/`."""
        return join(self.prefix, pattern)


def scope_of(url: str, provider: Provider) -> Scope:
    """The scope of the fleet at `url`.   Raises: Invalid, also for a bucket of another cloud."""
    place = locate(url, environ={})
    if place.scheme != _SCHEMES[provider]:
        raise Invalid(f"{url} is no bucket of {provider}", hint=f"give {_SCHEMES[provider]}://bucket/prefix")
    return Scope(place.bucket, place.prefix)


def is_amazon(url: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a bucket is on Amazon's own servers: neither its URL nor the environment names another endpoint."""
    named = url is not None and locate(url, environ={}).endpoint is not None
    return not named and not any(environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))


def root_of(tenant: str | None, workspace: str | None) -> str:
    """The prefix of a tenant's workspace below the fleet's URL; empty if neither is given.

    Raises: Invalid for one without the other.
    """
    if not tenant and not workspace:
        return ""
    if not tenant or not workspace:
        raise Invalid("a tenant and a workspace go together", hint="give both, or neither")
    return f"{segment(tenant)}/{segment(workspace)}"


def notes(provider: Provider, role: Role, roots: Sequence[str] = ()) -> list[str]:
    """What the printed policy grants beyond the table: one sentence for each difference."""
    if provider == "gcp":
        deleted = patterns(role, "delete", roots=roots)
        over = [pattern for pattern in patterns(role, "put", roots=roots) if pattern not in deleted]
        said = f"on Google Cloud a write over an object deletes it, so this key can also delete: {', '.join(over)}"
        return [said] if over else []
    if not any("*" in pattern for verb in _ACTIONS for pattern in patterns(role, verb, roots=roots)):
        return []
    return ["AWS lets * match /, so this key also reaches deeper keys of the same form, which Limpet never makes"]


# ---- AWS ----


def aws_policy(role: Role, scope: Scope, roots: Sequence[str] = (), *, conditional: bool = False) -> Json:
    """An IAM policy for one role: for `aws iam put-role-policy`, and any server that accepts AWS's policies.

    `roots`: the folders of the queues to which the role is narrowed (see `check_queues`). `conditional`: require a
    condition for puts of objects that are only ever swapped; for Amazon's own S3 only.
    """
    granted = {verb: patterns(role, verb, roots=roots) for verb in _ACTIONS}
    # Patterns with the same verbs share a statement: the size of a policy is limited.
    allowed: dict[tuple[Verb, ...], list[str]] = {}
    for pattern in sorted({pattern for found in granted.values() for pattern in found}):
        verbs = tuple(verb for verb, found in granted.items() if pattern in found)
        allowed.setdefault(verbs, []).append(pattern)
    statements = [_statement("Allow", verbs, [_arn(scope, each) for each in found]) for verbs, found in allowed.items()]
    statements.append(_listing(role, scope, roots))
    for verb in _ACTIONS:
        kept_out = [_arn(scope, pattern) for pattern in _NAMED_BY_USERS if _reached(role, verb, pattern, roots)]
        if verb != "get":
            folders = [folder for folder in patterns(role, "put") if folder.endswith("/") and folder != "probe/"]
            kept_out += [f"{_arn(scope, folder)}{end}" for end in UNWRITTEN.get(role, ()) for folder in folders]
        if kept_out:
            statements.append(_statement("Deny", (verb,), kept_out))
    if conditional and (swapped := [_arn(scope, pattern) for pattern in _swapped(role, roots)]):
        absent = {"Null": {"s3:if-match": "true", "s3:if-none-match": "true"}}
        deny = _statement("Deny", ("put",), swapped)
        statements.append(deny | {"Sid": "DenyPutWithoutCondition", "Condition": absent})
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(effect: str, verbs: Sequence[Verb], resources: list[str]) -> Json:
    actions = [_ACTIONS[verb] for verb in verbs]
    return {
        "Sid": effect + "".join(verb.title() for verb in verbs),
        "Effect": effect,
        "Action": actions if len(actions) > 1 else actions[0],
        "Resource": resources,
    }


def _arn(scope: Scope, pattern: str) -> str:
    return f"arn:aws:s3:::{scope.bucket}/{_glob(scope, pattern)}"


def _glob(scope: Scope, pattern: str) -> str:
    below = scope.below(pattern)
    return below if pattern and not pattern.endswith("/") else f"{below}*"


def _swapped(role: Role, roots: Sequence[str]) -> Iterator[str]:
    """The patterns that the role may put, and that every writer puts with a condition."""
    for pattern in patterns(role, "put", roots=roots):
        plain = next(
            (f"queues/*/{pattern.removeprefix(root)[1:]}" for root in roots if pattern.startswith(f"{root}/")), pattern
        )
        if plain.startswith(_SWAPPED):
            yield pattern


def _listing(role: Role, scope: Scope, roots: Sequence[str]) -> Json:
    """S3 checks this right with the prefix of a listing, and with the full key of an object that does not exist."""
    statement: Json = {
        "Sid": "AllowList",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": [f"arn:aws:s3:::{scope.bucket}"],
    }
    listed = patterns(role, "list", roots=roots)
    prefixes = [_glob(scope, pattern) for pattern in listed]
    for pattern in patterns(role, "get", besides=listed, roots=roots):
        endings = {"locks": ("lock",), "queues": ("json", "jsonl", "lock")}.get(pattern.partition("/")[0], ("json",))
        objects = [f"{pattern}*.{ending}" for ending in endings] if pattern.endswith("/") else [pattern]
        prefixes += map(scope.below, objects)  # objects, and no folder
    if "*" not in prefixes:  # of the whole bucket, a listing may come without a prefix
        statement["Condition"] = {"StringLike": {"s3:prefix": prefixes}}
    return statement


def _reached(role: Role, verb: Verb, pattern: str, roots: Sequence[str]) -> bool:
    """Whether AWS would let the role do `verb` somewhere in `pattern`, against the table."""
    head = pattern.partition("*")[0]
    granted, table = patterns(role, verb, roots=roots), grants(role, roots)
    forbidden = pattern in table and verb not in table[pattern]
    return forbidden and head not in granted and any(wider.startswith(f"{head}*") for wider in granted)


# ---- Google Cloud ----


def gcp_policy(role: Role, scope: Scope, roots: Sequence[str] = (), *, project: str, member: str) -> Json:
    """Custom roles for the project, and bindings of them for the bucket's policy (version 3). `roots`: see AWS."""
    reads = [_named(scope, pattern) for pattern in patterns(role, "get", roots=roots)]
    reads += [f'{_LISTED}.startsWith("{scope.below(pattern)}")' for pattern in patterns(role, "list", roots=roots)]
    writes = patterns(role, "put", roots=roots)
    deletes = patterns(role, "delete", besides=writes, roots=roots)
    wanted = {
        "limpetRead": reads,
        "limpetWrite": [_written(role, scope, pattern) for pattern in writes],
        "limpetDelete": [_written(role, scope, pattern) for pattern in deletes],
    }
    bindings = [
        {
            "role": f"projects/{project}/roles/{name}",
            "members": [member],
            "condition": {"title": f"limpet {role} {name.removeprefix('limpet').lower()} {n}", "expression": condition},
        }
        for name, terms in wanted.items()
        for n, condition in enumerate(_conditions(terms), 1)
    ]
    used = {
        name: {
            "title": f"Limpet: {name.removeprefix('limpet').lower()}",
            "description": description,
            "stage": "GA",
            "includedPermissions": [f"storage.objects.{verb}" for verb in verbs],
        }
        for name, (description, verbs) in _GCP_ROLES.items()
        if wanted[name]
    }
    return {"roles": used, "policy": {"version": 3, "bindings": bindings}}


def _named(scope: Scope, pattern: str) -> str:
    """A condition that is true for the objects of `pattern`. The language has no wildcards, so the segment at the first
    `*` is extracted and compared. Of a pattern with a second `*`, the beginning and the end are compared; of a folder
    in it, what lies between the last two names, so that a queue whose name is the first of them is left out.
    """
    place = f"projects/_/buckets/{scope.bucket}/objects/"
    head, *rest = (place + scope.below(pattern)).split("*")
    if not rest:
        return f'resource.name.startsWith("{head}")' if head.endswith("/") else f'resource.name == "{head}"'
    middle, end = rest[0], rest[-1]
    parts = [f'resource.name.startsWith("{head}")']
    if middle != "/":
        cut = f'resource.name.extract("{head}{{name}}{middle}")'
        parts += [f'{cut} != ""', f'{cut} == resource.name.extract("{head}{{name}}/")']
    if not end.endswith("/"):
        parts.append(f'resource.name.endsWith("{end}")')
    elif len(rest) > 1 and end != "/":
        cut = f'resource.name.extract("{middle}{{entry}}{end}")'
        parts += [f'{cut} != ""', f'{cut} == resource.name.extract("{middle}{{entry}}/")']
    return f"({' && '.join(parts)})"


def _written(role: Role, scope: Scope, pattern: str) -> str:
    """The same, without the endings that the role may not write."""
    ends = [f'!resource.name.endsWith("{end}")' for end in UNWRITTEN.get(role, ())]
    return f"({' && '.join([_named(scope, pattern), *ends])})" if ends else _named(scope, pattern)


def _conditions(terms: Sequence[str]) -> Iterator[str]:
    """The terms joined by `||`, in as few conditions as Google's limit of operators allows."""
    taken: list[str] = []
    for term in terms:
        if taken and " || ".join([*taken, term]).count("&&") + len(taken) > _OPERATORS_MAX:
            yield " || ".join(taken)
            taken = []
        taken.append(term)
    if taken:
        yield " || ".join(taken)
