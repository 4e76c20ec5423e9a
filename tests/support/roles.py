"""Keys that a server itself holds to the rights of a role, by exactly the policies that `limpet iam` prints.

    key = key_for(seaweedfs, "worker", "t-1/fleet")     # a `Bucket`: `url` is the fleet, `options` and `env` log in
    store = CloudStore(key.url, options=key.options)

SeaweedFS enforces the policies in full, listings too, and its conditional puts are atomic: whole services run on it.
`examples` are keys of every shape that Limpet makes, for trying what such a key may do.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from limpet.kernel import keys
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Denied, Missing
from limpet.kernel.keys import FLEET, IndexKeys, Key, QueueKeys
from limpet.kernel.store import Store
from limpet.kernel.store.cloud import CloudStore
from limpet.kernel.store.policies import aws_policy, scope_of
from limpet.kernel.store.roles import Role, Verb, allows, check_queues, check_role
from support.servers.process import Bucket
from support.servers.s3 import bucket_of

__all__ = [
    "OBJECT_VERBS", "OTHERS", "Shape", "client", "examples", "folders_of", "key_for", "may", "shapes", "user_with",
    "wrong",
]  # fmt: skip

PATIENCE_S = 30.0
OBJECT_VERBS: tuple[Verb, ...] = ("get", "put", "delete")
OTHERS = ("warehouse/ns/t/metadata/1.metadata.json", "warehouse/packs/inbox/data/1.parquet")  # named by table clients
DOMAINS = ("catalog", "executions")
ULID = "01jd0000000000000000000000"
PLAIN: Mapping[str, Any] = {
    "batch": False,
    "drop": Key("queues/x.drop.json"),
    "due": "2026-11-01T00:00:00Z",
    "entry": "a%20b",
    "id_": ULID,
    "key": "a.com",
    "n": 0,
    "name": "x",
    "node": "pi-a",
    "number": 1,
    "run": ULID,
    "seq": 7,
    "shard": "5e",
    "signal": "go",
    "slot": 3,
    "stamp": "2026-11-01T00:00:00.000000Z",
    "token": 1,
}


# ---- keys of every shape ----


@dataclass(frozen=True, slots=True)
class Shape:
    """One builder of `kernel/keys.py`. `needs` are the names of its arguments; the first of a room's keys is `name`."""

    title: str
    build: Callable[..., Key]
    needs: tuple[str, ...]


def shapes() -> list[Shape]:
    """Every builder of keys there is, so that a new one cannot be forgotten."""
    found = [Shape(name, build, _needs(build)) for name, build in _makers(keys)]
    for room in (QueueKeys, IndexKeys, CatalogKeys):
        for name, build in _makers(room):
            needs = ("name", *_needs(build)[1:])
            found.append(Shape(f"{room.__name__}.{name}", _of(room, name), needs))
    return [shape for shape in found if shape.title not in ("check", "check_path", "join")]


def examples() -> list[Key]:
    """A key of each shape with plain names, and some with the names of our own folders."""
    found: list[str] = [*OTHERS, FLEET, keys.NODE, keys.SUPERVISOR]
    for shape in shapes():
        plain = {name: PLAIN[name] for name in shape.needs}
        of_catalog = shape.title.startswith("CatalogKeys")
        found += [shape.build(**plain | {"name": name}) for name in DOMAINS] if of_catalog else [shape.build(**plain)]
    index, queue = IndexKeys.of("packs"), QueueKeys.of("pending")
    found += [index.single("5e", name, PLAIN["stamp"], ULID) for name in ("packs", "shards", "inbox", "quarantine")]
    found += [queue.part("pending", ULID), queue.lease("slots"), queue.failed_of("sweep"), index.pack("5e", ULID)]
    found += [queue.tasks("sweep.json", batch=True), QueueKeys.of("sweep.json").sweep]
    return sorted({*map(Key, found)})


def folders_of(all_keys: Sequence[str]) -> list[str]:
    """Every folder that holds one of the keys; the first is that of all."""
    return sorted({"/".join(parts[:n]) for key in all_keys for parts in [key.split("/")] for n in range(len(parts))})


def _makers(where: Any) -> Iterator[tuple[str, Callable[..., Key]]]:
    for name, member in vars(where).items():
        call = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if inspect.isfunction(call) and call.__annotations__.get("return") == "Key":
            yield name, call


def _needs(build: Callable[..., Key]) -> tuple[str, ...]:
    return tuple(inspect.signature(build).parameters)


def _of(room: Any, name: str) -> Callable[..., Key]:
    def build(**arguments: Any) -> Key:
        made = getattr(room.of(arguments.pop("name")), name)
        return Key(made(**arguments) if callable(made) else made)

    return build


# ---- keys of a server ----


def client(service: str, endpoint: str, options: Mapping[str, str]) -> Any:
    """A client of boto3 for `iam` or `s3`."""
    return import_module("boto3").client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
    )


def user_with(iam: Any, policy: Mapping[str, Any]) -> dict[str, str]:
    """A new user with one policy; the options that log it in."""
    name = f"u-{uuid4().hex}"
    iam.create_user(UserName=name)
    made = iam.create_policy(PolicyName=name, PolicyDocument=json.dumps(policy))
    iam.attach_user_policy(UserName=name, PolicyArn=made["Policy"]["Arn"])
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}


def key_for(bucket: Bucket, role: str, prefix: str, *, queues: Sequence[str] = ()) -> Bucket:
    """A key to `prefix` of the SeaweedFS bucket with the rights of `role`, as its server enforces them.

    The bucket of the answer is that prefix: open its `url` with its `options`, or give its `env` to a process.
    """
    place = bucket.at(prefix)
    endpoint = parse_qs(urlsplit(place).query)["endpoint"][0]
    known = check_role(role)
    policy = aws_policy(known, scope_of(place, "aws"), check_queues(known, queues))
    options = user_with(client("iam", endpoint, bucket.options), policy)
    _until_known(CloudStore(place, options=options))
    return Bucket(place, options, bucket_of(endpoint, urlsplit(place).netloc, options, {}).env)


def _until_known(store: Store) -> None:
    """The server's own word on a new user comes a moment later. Every role may read `limpet.json`."""
    until = time.monotonic() + PATIENCE_S
    while not _does(lambda: store.get(FLEET)):
        assert time.monotonic() < until, "the server does not know the new user"
        time.sleep(0.02)


# ---- what a key may do ----


def may(store: Store, key: Key) -> dict[Verb, bool]:
    """Whether the server lets `store` put, get and delete an object. What it may, it does."""
    put = _does(lambda: store.put(key, b"{}"))
    return {"put": put, "get": _does(lambda: store.get(key)), "delete": _does(lambda: store.delete(key))}


def wrong(
    role: Role | None,
    store: Store,
    all_keys: Sequence[Key],
    folders: Sequence[str],
    *,
    at_once: int = 8,
    roots: Sequence[str] = (),
) -> list[str]:
    """Where the server and the table of roles differ; without a role, where it lets anything pass."""
    with ThreadPoolExecutor(at_once) as pool:
        objects = [*pool.map(lambda key: may(store, key), all_keys)]
        lists = [*pool.map(lambda folder: _does(lambda: [*store.list(folder)]), folders)]
    found: list[tuple[Verb, str, bool]] = [
        (verb, key, did) for key, each in zip(all_keys, objects, strict=True) for verb, did in each.items()
    ]
    found += [("list", folder, did) for folder, did in zip(folders, lists, strict=True)]
    return [
        f"{role} {'can' if did else 'cannot'} {verb} {key or 'everything'}"
        for verb, key, did in found
        if did is not (role is not None and allows(role, verb, key, roots))
    ]


def _does(act: Callable[[], object]) -> bool:
    try:
        act()
    except Denied:
        return False
    except Missing:
        pass  # only whoever may get it is told so
    return True
