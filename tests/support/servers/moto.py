"""moto: SQS on a laptop (PyPI `moto[server]`), and a middleman that spoils single requests on their way to it.

moto is not atomic: a push beside a delete on one queue can be lost, and a message can be delivered twice at once.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any, Self
from urllib.parse import urlsplit

from support.servers.process import Bucket, NotInstalled, Server, free_ports

__all__ = ["REGION", "Answer", "Body", "Meddler", "Moto", "failing", "refusing"]

REGION = "us-east-1"

Body = dict[str, Any]
Answer = tuple[int, Body]
Forward = Callable[[Body], Answer]
Rule = Callable[[Body, Forward], Answer]


class Moto(Server):
    """`python -m moto.server`. Its `bucket` is no bucket: `env` is what an SQS client needs."""

    def launch(self) -> Bucket:
        """See `Server.launch`."""
        if find_spec("moto") is None:
            raise NotInstalled("moto is not installed: pip install 'moto[server]'")
        [port] = free_ports(1)
        self.run("moto", [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])
        self.wait(lambda: _answers(port), "moto")
        env = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "LIMPET_SQS_ENDPOINT": f"http://127.0.0.1:{port}",
        }
        return Bucket(f"sqs://{REGION}", {}, env)


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/moto-api/data.json")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Meddler:
    """A context manager between an SQS client and its server. `endpoint` takes the place of the server's.

    `next(operation, rule)` lets `rule` answer the next request of that kind; `always` all of them. A rule gets the
    request and the way to the server.
    """

    def __init__(self, endpoint: str) -> None:
        self._target = urlsplit(endpoint).netloc
        self._once: dict[str, list[Rule]] = {}
        self._always: dict[str, Rule] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def next(self, operation: str, *rules: Rule) -> None:
        """The next requests meet these rules, one each."""
        self._once.setdefault(operation, []).extend(rules)

    def forget(self) -> None:
        """No rules any more."""
        self._once.clear()
        self._always.clear()

    def always(self, operation: str, rule: Rule) -> None:
        """From now on."""
        self._always[operation] = rule

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        meddler = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = meddler._answer(operation, request, dict(self.headers))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _answer(self, operation: str, request: Body, headers: Mapping[str, str]) -> Answer:
        waiting = self._once.get(operation)
        rule = waiting.pop(0) if waiting else self._always.get(operation)

        def forward(request: Body) -> Answer:
            return self._forward(request, headers)

        return forward(request) if rule is None else rule(request, forward)

    def _forward(self, request: Body, headers: Mapping[str, str]) -> Answer:
        body = json.dumps(request).encode()
        connection = HTTPConnection(self._target, timeout=60)
        try:
            connection.request("POST", "/", body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()


def failing(status: int, code: str, message: str = "so it is") -> Rule:
    """The server answers with an error, and does nothing."""
    return lambda request, forward: (status, {"__type": f"com.amazonaws.sqs#{code}", "message": message})


def refusing(
    which: Callable[[Body], bool], code: str = "InternalError", *, ours: bool = False, message: str = "so it is"
) -> Rule:
    """Some entries of a batch are refused inside an answer of 200; the others are done."""

    def rule(request: Body, forward: Forward) -> Answer:
        refused = [entry for entry in request["Entries"] if which(entry)]
        passed = [entry for entry in request["Entries"] if not which(entry)]
        status, answer = forward({**request, "Entries": passed}) if passed else (200, {"Successful": []})
        failed = [{"Id": each["Id"], "SenderFault": ours, "Code": code, "Message": message} for each in refused]
        return status, {**answer, "Failed": [*answer.get("Failed", ()), *failed]}

    return rule
