"""Azurite: Azure Blob Storage on a laptop (npm `azurite`, installed into .cache/azurite)."""

from __future__ import annotations

import base64
import fcntl
import hmac
import shutil
import subprocess
from datetime import UTC, datetime
from email.utils import format_datetime
from http.client import HTTPConnection
from pathlib import Path

from support.servers.process import Bucket, NotInstalled, Server, free_ports

__all__ = ["Azurite"]

VERSION = "3.37.0"
INSTALL_S = 300
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "azurite"
ENTRY = CACHE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"

CONTAINER = "limpet"
ACCOUNT = "limpet"
KEY = base64.b64encode(b"a key for tests on one machine..").decode()


class Azurite(Server):
    """`azurite-blob` with its data in memory, and one container."""

    def launch(self) -> Bucket:
        """See `Server.launch`."""
        node = _install()
        [port] = free_ports(1)
        listen = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(self.folder / "data")]
        self.run("azurite", [node, str(ENTRY), *listen, *quiet], {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"})
        self.wait(lambda: _create_container(port), "azurite")
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        return Bucket(
            url=f"az://{CONTAINER}?endpoint={endpoint}&account={ACCOUNT}",
            options={"account_key": KEY},
            env={"AZURE_STORAGE_ACCOUNT_KEY": KEY},
        )


def _install() -> str:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotInstalled("Azurite needs Node.js: apt-get install nodejs npm")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ENTRY.exists():
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), f"azurite@{VERSION}"]
            done = subprocess.run(command, capture_output=True, timeout=INSTALL_S, check=False)
            if done.returncode:
                raise NotInstalled(f"npm could not install azurite@{VERSION}: {done.stderr.decode().strip()[-200:]}")
    return node


def _create_container(port: int) -> bool:
    """Whether the server answered, and the container is there now. Signed with the account's shared key."""
    headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": "2023-11-03"}
    path = f"/{ACCOUNT}/{CONTAINER}"
    text = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    text += f"/{ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")).decode()
    headers |= {"authorization": f"SharedKey {ACCOUNT}:{signature}", "content-length": "0"}
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        return connection.getresponse().status in (201, 409)
    except OSError:
        return False
    finally:
        connection.close()
