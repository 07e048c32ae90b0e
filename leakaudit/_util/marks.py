"""Marks in files that contain personal data, by which `leakaudit purge` recognises them."""

from __future__ import annotations

import os
from typing import BinaryIO

MAKER = "leakaudit"
PERSONAL = "leakaudit: contains personal data"
# The last line of a page of Markdown: a definition that no link uses is not shown, and unlike a
# comment of HTML it is allowed wherever HTML is not.
COMMENT = f"[//]: # ({PERSONAL})"
SOFTWARE = "Software"  # the field of a PNG, as its specification names it

_PNG = b"\x89PNG\r\n\x1a\n"
_ARCHIVE = b"PK\x05\x06"  # where the end of a zip archive begins
_ARCHIVE_END = 22  # bytes of this end without its comment
_LENGTH = 2  # bytes of the length of the comment, the last field before it
HEAD = 1 << 16  # bytes at the start of a file in which its mark is searched; a choice
TAIL = 1 << 20  # the same at its end, where a PDF has a table of about 20 bytes per object


def of(personal: bool) -> str:
    """Return the mark of a file."""
    return PERSONAL if personal else MAKER


def archive(file: BinaryIO) -> None:
    """Mark an archive of arrays."""
    mark = PERSONAL.encode()
    file.seek(-_LENGTH, os.SEEK_END)
    file.write(len(mark).to_bytes(_LENGTH, "little") + mark)


def found(file: BinaryIO) -> bool:
    """Return whether a file has a mark of personal data."""
    mark = PERSONAL.encode()
    head = file.read(HEAD)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    tail = file.read(TAIL)

    if head.startswith(_PNG):
        return b"tEXt" + SOFTWARE.encode() + b"\0" + mark in head
    if head.startswith(b"%PDF"):
        return b"/Creator (" + mark + b")" in tail
    if head.startswith((b"<?xml", b"<svg")):
        return b"<svg" in head and b"<dc:title>" + mark + b"</dc:title>" in head
    if head.startswith(b"PK"):
        return tail[-_ARCHIVE_END - len(mark) :].startswith(_ARCHIVE) and tail.endswith(mark)
    last = tail.rstrip().rpartition(b"\n")[2].strip()
    return last in (mark, COMMENT.encode())
