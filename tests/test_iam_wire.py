"""Servers that enforce policies, given exactly the printed ones, agree with the table of roles on every key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

import limpet
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Denied, Missing
from limpet.kernel.keys import FLEET, QueueKeys
from limpet.kernel.store.api import Put
from limpet.kernel.store.cloud import CloudStore
from limpet.kernel.store.policies import Scope, aws_policy, root_of
from limpet.kernel.store.roles import NARROWED, ROLES, Role, check_queues
from support.roles import client, examples, folders_of, key_for, wrong
from support.servers.moto import Moto
from support.servers.process import Bucket, NotInstalled
from support.servers.s3 import create_bucket, set_policy

KEYS = examples()
FOLDERS = folders_of(KEYS)
SOME = KEYS[::5]
CATALOG, QUEUE = CatalogKeys.of("catalog"), QueueKeys.of("x")
MINE, THEIRS = root_of("acme", "prod"), root_of("acme", "prod2")

every_role = pytest.mark.parametrize("role", ROLES)


def seed(bucket: Bucket, prefix: str) -> None:
    """An object for every key."""
    owner = CloudStore(bucket.at(prefix), options=bucket.options)
    assert [
        each for each in owner.put_many([Put(key, b"{}") for key in KEYS]).values() if not isinstance(each, str)
    ] == []


# ---- SeaweedFS: managed policies of users ----


@every_role
def test_seaweedfs_holds_a_key_to_its_role(seaweedfs: Bucket, role: Role) -> None:
    root = f"roles-{uuid4().hex}"
    seed(seaweedfs, f"{root}/{MINE}")
    seed(seaweedfs, f"{root}/{THEIRS}")
    key = key_for(seaweedfs, role, f"{root}/{MINE}")
    assert wrong(role, CloudStore(key.url, options=key.options), KEYS, FOLDERS) == []
    theirs = CloudStore(seaweedfs.at(f"{root}/{THEIRS}"), options=key.options)
    assert wrong(None, theirs, SOME, folders_of(SOME)) == []
    for outside in (root, f"{root}/acme"):
        with pytest.raises(Denied):
            next(CloudStore(seaweedfs.at(outside), options=key.options).list(), None)


@pytest.mark.parametrize("role", NARROWED)
def test_seaweedfs_holds_a_key_to_its_queues(seaweedfs: Bucket, role: Role) -> None:
    root = f"roles-{uuid4().hex}"
    seed(seaweedfs, root)
    queues = ["x", "a b"]
    key = key_for(seaweedfs, role, root, queues=queues)
    others = [QueueKeys.of(name) for name in (*queues, "y", "xx", "pending")]
    mine = [
        make for queue in others for make in (queue.lease("e"), queue.tasks("e", batch=False), queue.completed_of("e"))
    ]
    keys = sorted({*KEYS, *mine})
    store = CloudStore(key.url, options=key.options)
    assert wrong(role, store, keys, folders_of(keys), roots=check_queues(role, queues)) == []


def test_a_pusher_and_a_worker_of_one_queue(seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"roles-{uuid4().hex}"

    def opened_by(env: Mapping[str, str]) -> limpet.Fleet:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return limpet.open(seaweedfs.at(prefix))

    opened_by(seaweedfs.env).check()
    pusher = opened_by(key_for(seaweedfs, "pusher", prefix, queues=["emails"]).env).queue("emails")
    worker = opened_by(key_for(seaweedfs, "worker", prefix, queues=["emails"]).env).queue("emails")
    pusher.push({"n": 1}, id="one")
    pusher.push_many([{"n": n} for n in range(3)])
    pusher.push({"n": 5}, delay_s=60)
    many = pusher.push_many([{"n": n} for n in range(3)], id="many")
    assert pusher.push_many([{"n": n} for n in range(3)], id="many") == many
    assert pusher.signal("one", "approved", {"by": "ann"})
    assert not pusher.signal("one", "approved")
    while claim := worker.claim():
        with claim:
            for task in claim:
                task.done("fine")
    assert pusher.result("one").value == "fine"
    assert not pusher.push({"n": 1}, id="one").created
    worker.flush()
    with pytest.raises(Missing):
        pusher.signal("one", "approved")
    with pytest.raises(Denied):
        pusher.claim()
    for role in NARROWED:
        with pytest.raises(Denied):
            opened_by(key_for(seaweedfs, role, prefix, queues=["emails"]).env).queue("invoices").push({})


def test_a_key_for_a_whole_bucket(seaweedfs: Bucket) -> None:
    """Then a listing has no prefix."""
    endpoint = parse_qs(urlsplit(seaweedfs.url).query)["endpoint"][0]
    name = f"roles-{uuid4().hex}"
    assert create_bucket(endpoint, name, seaweedfs.options)
    whole = Bucket(f"s3://{name}?endpoint={endpoint}&region=us-east-1", seaweedfs.options)
    CloudStore(whole.url, options=whole.options).put(FLEET, b"{}")
    few = [FLEET, CATALOG.head, CATALOG.lock]
    for role in ("compactor", "reader"):
        key = key_for(whole, role, "")
        assert wrong(role, CloudStore(key.url, options=key.options), few, ["", *folders_of(few)]) == []


@dataclass
class Site:
    """A record."""

    domain: str
    title: str = ""


def test_the_rooms_work_with_keys_of_their_roles(seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"roles-{uuid4().hex}"

    def opened_by(env: Mapping[str, str], *, read_only: bool = False) -> limpet.Fleet:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return limpet.open(seaweedfs.at(prefix), read_only=read_only)

    opened_by(seaweedfs.env).index("sites", Site, key="domain").put(Site("first.com"))  # creates the index
    fleet = opened_by(key_for(seaweedfs, "worker", prefix).env)
    queue, index = fleet.queue("enrich"), fleet.index("sites", Site, key="domain")
    queue.push({"n": 1}, id="one")
    queue.push_many([{"n": n} for n in range(3)])
    while claim := queue.claim():
        with claim:
            for task in claim:
                index.put(Site(f"{task.id}.com"))
                task.done()
    with fleet.lock("report").hold(wait_s=0) as lease:
        fleet.cell("report").write({"rows": 4}, lease=lease)
    with pytest.raises(Denied):
        queue.pause()
    fleet = opened_by(key_for(seaweedfs, "compiler", prefix).env)
    assert fleet.index("sites", Site, key="domain").compile(full=True).folded > 0
    fleet = opened_by(key_for(seaweedfs, "reader", prefix).env, read_only=True)
    assert len([*fleet.index("sites", Site, key="domain").scan()]) == 5
    assert fleet.queue("enrich").stats().completed == 4
    with pytest.raises(Denied):
        opened_by(key_for(seaweedfs, "compactor", prefix).env).queue("enrich").push({})


# ---- moto: inline policies of users; it does not look at s3:prefix ----


@pytest.fixture(scope="module")
def moto() -> Iterator[tuple[str, dict[Role, dict[str, str]]]]:
    """An endpoint that enforces IAM, with a bucket and a user for each role."""
    try:
        with Moto() as server:
            endpoint = server.bucket.env["LIMPET_SQS_ENDPOINT"]
            anyone = {"access_key_id": "a", "secret_access_key": "b"}
            client("s3", endpoint, anyone).create_bucket(Bucket="limpet")
            users = {role: _inline(client("iam", endpoint, anyone), role) for role in ROLES}
            _enforce(endpoint)
            yield endpoint, users
    except NotInstalled as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def _inline(iam: Any, role: Role) -> dict[str, str]:
    iam.create_user(UserName=role)
    policy = json.dumps(aws_policy(role, Scope("limpet", MINE)))
    iam.put_user_policy(UserName=role, PolicyName="limpet", PolicyDocument=policy)
    key = iam.create_access_key(UserName=role)["AccessKey"]
    return {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}


def _enforce(endpoint: str) -> None:
    """From now on every request needs a policy that allows it."""
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    try:
        connection.request("POST", "/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        assert connection.getresponse().status == 200
    finally:
        connection.close()


@every_role
def test_moto_holds_a_key_to_its_role(moto: tuple[str, dict[Role, dict[str, str]]], role: Role) -> None:
    endpoint, users = moto
    place = Bucket(f"s3://limpet?endpoint={endpoint}&region=us-east-1", users[role])
    assert wrong(role, CloudStore(place.at(MINE), options=users[role]), KEYS, [], at_once=2) == []
    few = [FLEET, CATALOG.head]
    assert wrong(None, CloudStore(place.at(THEIRS), options=users[role]), few, []) == []


# ---- Ceph RGW: one bucket policy for one user ----


@pytest.mark.full
@pytest.mark.timeout(600)
def test_ceph_holds_a_key_to_its_role(server: Callable[[str], Bucket]) -> None:
    rgw = server("rgw")
    endpoint = parse_qs(urlsplit(rgw.url).query)["endpoint"][0]
    name = f"roles-{uuid4().hex}"
    assert create_bucket(endpoint, name, rgw.options)
    bucket = Bucket(f"s3://{name}?endpoint={endpoint}&region=us-east-1", rgw.options)
    mine = CloudStore(bucket.at(MINE), options=rgw.read_only)
    theirs = CloudStore(bucket.at(THEIRS), options=rgw.read_only)
    for role in ROLES:
        seed(bucket, MINE)
        seed(bucket, THEIRS)
        set_policy(endpoint, name, rgw.options, _bucket_policy(role, name))
        assert wrong(role, mine, KEYS, FOLDERS) == []
        assert wrong(None, theirs, SOME, folders_of(SOME)) == []
    # Ceph of this age hides what is missing wherever a listing has a condition; without one it does not.
    policy = _bucket_policy("worker", name)
    set_policy(endpoint, name, rgw.options, policy)
    with pytest.raises(Denied):
        mine.get(QUEUE.completed_of("nobody"))
    del next(each for each in policy["Statement"] if each["Sid"] == "AllowList")["Condition"]
    set_policy(endpoint, name, rgw.options, policy)
    with pytest.raises(Missing):
        mine.get(QUEUE.completed_of("nobody"))


def _bucket_policy(role: Role, bucket: str) -> dict[str, Any]:
    """A role's policy as the bucket's own, for one user."""
    policy = aws_policy(role, Scope(bucket, MINE))
    for statement in policy["Statement"]:
        statement["Principal"] = {"AWS": ["arn:aws:iam:::user/reader"]}
    return policy
