"""The container of a .pt file: a zip archive of stored records, in the form that torch writes.

Files written here are sparse and have no checksum of the tensors, which are filled in later.

Layout of a zip archive (PKWARE APPNOTE 6.3): for each record, a local header (PK 3 4) with its name
and extra fields, followed by its data; after all records, the central directory with one entry (PK
1 2) for each; then the 64-bit end record (PK 6 6), its locator (PK 6 7) and the end record (PK 5
6). If a 32-bit field contains `WIDE`, its value is in a 64-bit extra field.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import zlib
from typing import NamedTuple, NoReturn

# The records that torch writes, after the archive's own prefix.
_RECORDS = (
    r"data\.pkl",
    r"version",
    r"byteorder",
    r"\.format_version",
    r"\.storage_alignment",
    r"\.data/serialization_id",
    r"data/\d{1,9}",
)
NAME = re.compile(rf"([^/\\]+)/({'|'.join(_RECORDS)})")
# Choices far above what a trace needs: one record per tensor, about 100 bytes per record.
MAX_RECORDS = 4096
MAX_DIRECTORY = 1 << 20  # bytes
ALIGNMENT = 64  # bytes; torch aligns to 64 as well, so that any type can be mapped
WIDE = 0xFFFFFFFF  # "see the 64-bit field"

_LOCAL = 30  # bytes of a local header without name and extra fields
_ENTRY = 46  # bytes of an entry of the directory
_END = 22  # bytes of the end record
_LOCATOR = 20
_WIDE_END = 56  # bytes of the 64-bit end record


class FileFault(Exception):
    """Describes what is wrong with a file."""


class Record(NamedTuple):
    """Position of the bytes of one record."""

    header: int  # start of its local header
    start: int
    size: int  # number of bytes of its data


def refuse(why: str) -> NoReturn:
    """Raise `FileFault`."""
    raise FileFault(why)


def short(text: object) -> str:
    """Quote untrusted text on one line."""
    return ascii(str(text)[:60])


class _Directory(NamedTuple):
    records: int
    length: int
    start: int
    end: int


class _Listed(NamedTuple):
    """One entry of the directory; `after` is the position after it."""

    name: str
    header: int
    size: int
    after: int


def directory(fd: int, size: int) -> dict[str, Record]:
    """Return the records of an archive by name, without the archive's own prefix."""
    place = _end(fd, size)
    too_large = place.records > MAX_RECORDS or place.length > MAX_DIRECTORY
    if too_large or place.start + place.length != place.end:
        refuse("its archive directory is too large or not at the stated position")
    table = os.pread(fd, place.length, place.start)
    at = 0
    prefixes = set[str]()
    found: dict[str, Record] = {}
    for _ in range(place.records):
        listed = _listed(table, at)
        at = listed.after
        match = NAME.fullmatch(listed.name)
        if match is None or match[2] in found:
            refuse(f"the archive contains an unexpected or repeated record {short(listed.name)}")
        prefixes.add(match[1])
        start = _data(fd, listed.header, listed.name, size)
        found[match[2]] = Record(listed.header, start, listed.size)
    spans = sorted((r.header, r.start + r.size) for r in found.values())
    spans.append((place.start, place.end))
    if any(stop > after for (_, stop), (after, _) in itertools.pairwise(spans)):
        refuse("records of the archive overlap or extend beyond its end")
    if "data.pkl" not in found or len(prefixes) != 1:
        refuse("the archive has no index, or more than one")
    return found


def _end(fd: int, size: int) -> _Directory:
    """Read the end record, which ends the file without a comment, and the 64-bit one if any."""
    here = size - _END
    tail = os.pread(fd, _END, here) if here >= 0 else b""
    if len(tail) < _END or tail[:4] != b"PK\5\6" or tail[20:] != b"\0\0":
        refuse("it is not a trace, or is truncated (expected a .pt archive as written by torch)")
    count, length, start = struct.unpack("<HII", tail[10:20])
    locator = b""
    if here >= _LOCATOR + _WIDE_END:
        locator = os.pread(fd, _LOCATOR, here - _LOCATOR)
    if locator[:4] != b"PK\6\7":
        return _Directory(count, length, start, here)
    at = here - _LOCATOR - _WIDE_END
    record = os.pread(fd, _WIDE_END, at)
    if struct.unpack("<Q", locator[8:16]) != (at,) or record[:4] != b"PK\6\6":
        refuse("its archive directory is not at the stated position")
    count, length, start = struct.unpack("<QQQ", record[32:56])
    return _Directory(count, length, start, at)


def _listed(table: bytes, at: int) -> _Listed:
    if at + _ENTRY > len(table):
        refuse("its archive directory is truncated")
    sign, flags, method, packed, size, n, e, c, offset = struct.unpack_from(
        "<4s4xHH8xIIHHH8xI", table, at
    )
    # The entry is followed by the name (n bytes), the extra fields (e) and a comment (c).
    behind = at + _ENTRY
    name = table[behind : behind + n].decode("latin-1")
    extra = table[behind + n : behind + n + e]
    if sign != b"PK\1\2" or method != 0 or flags & 1:
        refuse(f"record {short(name)} is compressed, encrypted or damaged; a trace is uncompressed")
    # The 64-bit values are in this order, each only if its field contains `WIDE`.
    wide = _wide(extra)
    values = []
    for value in (size, packed, offset):
        values.append(wide.pop(0) if value == WIDE and wide else value)
    size, packed, offset = values
    if size != packed:
        refuse(f"record {short(name)} states a wrong size")
    return _Listed(name, offset, size, behind + n + e + c)


def _wide(extra: bytes) -> list[int]:
    """Return the 64-bit values among the extra fields of a record (field 1 of APPNOTE 4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1:
            field = extra[at : at + length]
            whole = field[: len(field) // 8 * 8]  # the record may end before the stated length
            return [value for (value,) in struct.iter_unpack("<Q", whole)]
        at += length
    return []


def _data(fd: int, header: int, name: str, size: int) -> int:
    """Return where the data of a record start; its local header must contain the same name."""
    head = os.pread(fd, _LOCAL, header) if header < size else b""
    if len(head) < _LOCAL or head[:4] != b"PK\3\4" or head[8:10] != b"\0\0":
        refuse(f"record {short(name)} is not at the position that the directory states")
    n, e = struct.unpack("<HH", head[26:30])
    if os.pread(fd, n, header + _LOCAL) != name.encode("latin-1"):
        refuse(f"record {short(name)} has two different names")
    return header + _LOCAL + int(n) + int(e)


class ArchiveWriter:
    """Lays out records one after another, each aligned to 64 bytes; their data are holes.

    Attributes:
        prefix: The archive's own prefix of every name.
    """

    _VERSION = 45  # of the format: 64-bit sizes
    _UTF8 = 0x800
    _DATE = 0x21  # 1 January 1980, the earliest in this format
    _PADDING = 0x4246  # the extra field with which torch pads, "FB"

    def __init__(self, prefix: str = "trace") -> None:
        self.prefix = prefix
        self.at = 0
        self.records: dict[str, Record] = {}
        self._pieces: list[tuple[int, bytes]] = []

    def add(self, name: str, size: int, data: bytes = b"") -> Record:
        """Append a record of a size in bytes, with its first bytes, if known."""
        full = f"{self.prefix}/{name}".encode()
        # Extra fields: 20 bytes of 64-bit sizes, then 4 bytes of a head and the padding.
        bare = self.at + _LOCAL + len(full) + 20 + 4
        pad = -bare % ALIGNMENT
        extra = struct.pack("<HHQQHH", 1, 16, size, size, self._PADDING, pad) + bytes(pad)
        head = struct.pack(
            "<4sHHHHHIIIHH",
            b"PK\3\4",
            self._VERSION,
            self._UTF8,
            0,  # method: stored
            0,  # time
            self._DATE,
            zlib.crc32(data),
            WIDE,
            WIDE,
            len(full),
            len(extra),
        )
        record = Record(self.at, bare + pad, size)
        self.records[name] = record
        self._pieces.append((self.at, head + full + extra + data))
        self.at = record.start + size
        return record

    def directory(self, crc: dict[str, int]) -> bytes:
        """Return the bytes that follow the last record."""
        out = b""
        for name, record in self.records.items():
            out += self._entry(name, record, crc.get(name, 0))
        count = len(self.records)
        length = len(out)
        end = self.at + length
        # The 64-bit end record: 44 bytes follow its size; versions; two disk numbers.
        out += struct.pack(
            "<4sQHHIIQQQQ",
            b"PK\6\6",
            44,
            self._VERSION,
            self._VERSION,
            0,
            0,
            count,
            count,
            length,
            self.at,
        )
        out += struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
        out += struct.pack(
            "<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, length, min(self.at, WIDE), 0
        )
        return out

    def _entry(self, name: str, record: Record, crc: int) -> bytes:
        full = f"{self.prefix}/{name}".encode()
        extra = struct.pack("<HHQQQ", 1, 24, record.size, record.size, record.header)
        head = struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            b"PK\1\2",
            self._VERSION,
            self._VERSION,
            self._UTF8,
            0,  # method: stored
            0,  # time
            self._DATE,
            crc,
            WIDE,
            WIDE,
            len(full),
            len(extra),
            0,  # comment
            0,  # disk
            0,  # internal attributes
            0,  # external attributes
            WIDE,
        )
        return head + full + extra

    def write(self, fd: int) -> None:
        """Write the headers and the data known so far."""
        for at, piece in self._pieces:
            os.pwrite(fd, piece, at)
