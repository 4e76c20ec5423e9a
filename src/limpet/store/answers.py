"""What a failed request of the cloud client says, in one line.

The client hands out a text of many lines: a summary, the server's XML, and a debug dump. The parts that decide what
happened are picked out here, and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_MAX = 200

_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Za-z -]+))?")
_CODE = re.compile(r"<Code>([^<]*)</Code>|\(code: (\w+)\)")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>|failed for key .*?: (.*?) \(code: ")
_SERVER = re.compile(r"Error performing [A-Z]+ (https?://)(?:[^/@\s]*@)?([^/\s]+)")
_REASON = re.compile(r'(?:message|error): "([^"]+)"|(InvalidCertificate\(\s*\w+|TimedOut)')
_KIND = re.compile(r"kind: (Connect|Timeout)\b")
_PAST_END = re.compile(r'Wanted range starting at|CONTENT_RANGE header: "bytes 0--1/0"')  # Azure; Azurite
_CREDENTIALS = re.compile(r"http://169\.254\.|metadata\.google\.internal|/latest/meta-data|/latest/api/token")


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is 0 when no HTTP answer came; `sent` is False when the request cannot have reached the server.

    `credentials` is True when it was the credentials that could not be fetched.
    """

    status: int
    code: str
    line: str
    sent: bool
    credentials: bool

    @property
    def no_bucket(self) -> bool:
        """Whether it is the bucket that is not there, rather than the object."""
        return self.code in ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted")


def read_answer(text: str) -> Answer:
    """The facts in the client's error text."""
    status, code, message, kind = (found.search(text) for found in (_STATUS, _CODE, _MESSAGE, _KIND))
    number = int(status[1]) if status else 416 if _PAST_END.search(text) else 0
    name = (code[1] or code[2]) if code else ""
    if status:
        said = (message[1] or message[2]) if message else ""
        line = " ".join(filter(None, [status[1], name or (status[2] or "").strip()])) + (f": {said}" if said else "")
    elif code:
        line = name + (f": {message[1] or message[2]}" if message else "")
    elif kind:
        found = _SERVER.search(text)
        server = f"{found[1]}{found[2]}" if found else "the server"
        line = f"{server} did not answer in time"
        if kind[1] == "Connect":
            reason = _REASON.search(text)
            why = (reason[1] or reason[2]) if reason else ""
            line = f"{server} cannot be reached" + (f": {why}" if why else "")
    else:
        line = _first_line(text)
    unreachable = bool(kind and kind[1] == "Connect")
    credentials = bool(_CREDENTIALS.search(text))
    return Answer(number, name, _one_line(line), sent=not (unreachable or credentials), credentials=credentials)


def _first_line(text: str) -> str:
    line = next(iter(text.splitlines()), "")
    return line.rpartition(" - ")[2].removeprefix("HTTP error: ")


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."
