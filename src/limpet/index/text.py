"""Records as lines of text: fields between U+001F, one LF at the end, no header, UTF-8.

Null is `\\N`. In every other field a backslash and the control characters (C0 and DEL) are escaped; JSON does that in
its own way. So a field holds no byte below 0x20 and any string survives: lines sort like the tuples of their fields, a
line is cut off only if its LF is missing, and every reader of delimited text can take it in (F23, F33).
"""

from __future__ import annotations

import re

from limpet.errors import Corrupt, Invalid

SEPARATOR = b"\x1f"
END = b"\n"
NULL = b"\\N"
BACKSLASH = ord("\\")

_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ESCAPES = {chr(i): _SHORT.get(chr(i), f"\\x{i:02x}") for i in (92, *range(32), 127)}
"""What is written for each character that a field cannot hold."""

_ESCAPED_AS = {char.encode(): escaped.encode() for char, escaped in ESCAPES.items()}
_MEANT_BY = {escaped: char for char, escaped in _ESCAPED_AS.items()}
_SAFE = bytes(byte for byte in range(256) if bytes([byte]) not in _ESCAPED_AS)
_ESCAPE = re.compile(rb"\\(?:x..|.|$)", re.DOTALL)


def escape(text: str) -> bytes:
    """A string as the bytes of one field.   Raises: Invalid for text that is not valid Unicode."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{text[:40]!r} is not valid Unicode") from None
    found = unsafe(data)
    if found:
        for char, escaped in _ESCAPED_AS.items():  # the backslash comes first, for the others bring new ones
            if char in found:
                data = data.replace(char, escaped)
    return data


def unsafe(data: bytes) -> bytes:
    """The bytes of `data` that a field cannot hold as they are, in their order."""
    return data.translate(None, _SAFE)


def unescape(field: bytes) -> bytes:
    """The bytes of the string behind a field that is not null.   Raises: Corrupt for an escape that there is not."""
    return _ESCAPE.sub(_undo, field) if BACKSLASH in field else field


def _undo(found: re.Match[bytes]) -> bytes:
    char = _MEANT_BY.get(found[0])
    if char is None:
        raise Corrupt(f"the field {found.string[:40]!r} has an escape that Limpet does not write")
    return char


def lines_of(data: bytes, *, what: str) -> list[bytes]:
    """The lines of an object, without their LF.   Raises: Corrupt for one that was cut off."""
    lines = data.split(END)
    if lines.pop():
        raise Corrupt(f"{what} does not end with a line feed: it was cut off")
    return lines
