"""Records as lines of text: fields between U+001F, one LF at the end, no header, UTF-8.

Null is `\\N`. In every other field a backslash and the control characters (C0 and DEL) are escaped, so a field holds no
byte below 0x20 and any string survives. Hence lines sort like the tuples of their fields, a line is cut off only if
its LF is missing, and every reader of delimited text can take it in (F23).
"""

from __future__ import annotations

import re

from limpet.errors import Corrupt, Invalid

__all__ = ["END", "NULL", "SEPARATOR", "escape", "lines_of", "unescape"]

SEPARATOR = b"\x1f"
END = b"\n"
NULL = b"\\N"

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
_ESCAPED = re.compile(rb"\\(?:x(0[0-9a-f]|1[0-9a-f]|7f)|(.)|$)", re.DOTALL)

_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES = {chr(i): _SHORT.get(chr(i), f"\\x{i:02x}") for i in (*range(32), 127, 92)}
_PLAIN = {b"\\": b"\\", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def escape(text: str) -> bytes:
    """A string as the bytes of one field.   Raises: Invalid for text that is not valid Unicode."""
    if _UNSAFE.search(text):
        text = _UNSAFE.sub(lambda found: _ESCAPES[found[0]], text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{text[:40]!r} is not valid Unicode") from None


def unescape(field: bytes) -> bytes:
    """The bytes of the string behind a field that is not null.   Raises: Corrupt for an escape that there is not."""
    return _ESCAPED.sub(_undo, field) if b"\\" in field else field


def _undo(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return bytes.fromhex(found[1].decode())
    if found[2] in _PLAIN:
        return _PLAIN[found[2]]
    raise Corrupt(f"the field {found.string[:40]!r} has an escape that Limpet does not write")


def lines_of(data: bytes, *, what: str) -> list[bytes]:
    """The lines of an object, without their LF.   Raises: Corrupt for one that was cut off."""
    lines = data.split(END)
    if lines.pop():
        raise Corrupt(f"{what} does not end with a line feed: it was cut off")
    return lines
