"""Ceph's object gateway: the second opinion on S3 (Debian `radosgw ceph-mon ceph-osd`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence

from support.servers.process import Bucket, NotInstalled, NotStarted, Server, free_ports
from support.servers.s3 import bucket_of, create_bucket, set_policy

__all__ = ["CephRGW"]

BUCKET = "limpet"
TOOL_S = 60
INSTALL_S = 240
PACKAGES = ("radosgw", "ceph-mon", "ceph-osd")
ADMIN = {"access_key_id": "limpet-admin", "secret_access_key": "limpet-admin-secret"}
READER = {"access_key_id": "limpet-reader", "secret_access_key": "limpet-reader-secret"}

CONFIG = """
[global]
fsid = {fsid}
mon host = v1:127.0.0.1:{mon}/0
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
mon data = {folder}/mon
mon data avail crit = 0
mon allow pool size one = true
mon osd min down reporters = 1
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 8589934592
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
mon max pg per osd = 2000
ms bind msgr2 = false
run dir = {folder}
log file = {folder}/$name.ceph.log
admin socket = {folder}/$name.asok
keyring = {folder}/keyring
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{rgw}
rgw enable usage log = false
rgw thread pool size = 128
rgw sts key = limpet-tests-key
rgw s3 auth use sts = true
"""


class CephRGW(Server):
    """A monitor, one object daemon in memory and a gateway, with a bucket and a read-only user."""

    def launch(self) -> Bucket:
        """See `Server.launch`."""
        _install()
        mon, rgw = free_ports(2)
        fsid = str(uuid.uuid4())
        for name in ("mon", "osd", "rgw"):
            (self.folder / name).mkdir()
        (self.folder / "keyring").touch()
        (self.folder / "ceph.conf").write_text(CONFIG.format(fsid=fsid, folder=self.folder, mon=mon, rgw=rgw))
        monmap = str(self.folder / "monmap")
        self._tool("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{mon}]", "--fsid", fsid, monmap)
        self._tool("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._daemon("ceph-mon", "-i", "a")
        self._tool("ceph", "osd", "new", osd := str(uuid.uuid4()))
        self._tool("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._daemon("ceph-osd", "-i", "0")
        self._user("admin", ADMIN)
        self._user("reader", READER)
        self._role("limpet-tables", {"AWS": ["arn:aws:iam:::user/admin"]})
        self._daemon("radosgw", "-n", "client.rgw")
        endpoint = f"http://127.0.0.1:{rgw}"
        self.wait(lambda: create_bucket(endpoint, BUCKET, ADMIN), "radosgw")
        set_policy(endpoint, BUCKET, ADMIN, _may_read("reader"))
        return bucket_of(endpoint, BUCKET, ADMIN, READER)

    def _tool(self, command: str, *arguments: str) -> None:
        line = [command, "-c", f"{self.folder}/ceph.conf", *arguments]
        try:
            done = subprocess.run(line, capture_output=True, timeout=TOOL_S, cwd=self.folder, check=False)
        except subprocess.TimeoutExpired:
            raise NotStarted(f"{' '.join(line)} did not end in {TOOL_S} s") from None
        if done.returncode:
            raise NotStarted(f"{' '.join(line)}\n{done.stderr.decode(errors='replace')}")

    def _daemon(self, command: str, *arguments: str) -> None:
        self.run(command, [command, "-c", f"{self.folder}/ceph.conf", *arguments, "-f"])

    def _role(self, name: str, who: dict[str, list[str]]) -> None:
        """A role for the bucket, which `who` may assume."""
        trust = [{"Effect": "Allow", "Principal": who, "Action": ["sts:AssumeRole"]}]
        arns = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
        rights = [{"Effect": "Allow", "Action": ["s3:*"], "Resource": arns}]
        named = ["--role-name", name]
        self._tool("radosgw-admin", "role", "create", *named, "--assume-role-policy-doc", _policy(trust))
        self._tool("radosgw-admin", "role-policy", "put", *named, "--policy-name", "a", "--policy-doc", _policy(rights))

    def _user(self, name: str, keys: dict[str, str]) -> None:
        key, secret = keys["access_key_id"], keys["secret_access_key"]
        named = ["--uid", name, "--display-name", name]
        self._tool("radosgw-admin", "user", "create", *named, "--access-key", key, "--secret-key", secret)


def _install() -> None:
    if all(shutil.which(name) for name in PACKAGES):
        return
    wanted = f"Ceph RGW is not installed: apt-get install {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotInstalled(wanted)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", *command], capture_output=True, timeout=INSTALL_S, env=environ, check=False)
        if done.returncode:
            raise NotInstalled(f"{wanted} ({done.stderr.decode(errors='replace').strip()[-200:]})")


def _policy(statements: Sequence[Mapping[str, object]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _may_read(user: str) -> dict[str, object]:
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [f"arn:aws:iam:::user/{user}"]},
                "Action": ["s3:GetObject", "s3:ListBucket"],
                "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
            }
        ],
    }
