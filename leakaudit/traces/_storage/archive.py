"""The container of a .pt file: a zip archive of stored records.

It is read against what torch writes and nothing else, and written sparse. Records are stored,
never compressed, so that a tensor can be mapped. What is written here carries 64-bit sizes
throughout and no checksum of the tensors, which are filled in later; their integrity is a sha256
beside the file.

Layout of a zip archive (PKWARE APPNOTE 6.3): for each record a local header (PK 3 4) with its name
and extra fields, then its data; behind all records the central directory, one entry (PK 1 2) for
each; behind it the 64-bit end record (PK 6 6), its locator (PK 6 7) and the end record (PK 5 6),
which closes the file. A 32-bit field that holds `WIDE` has its value in a 64-bit extra field.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import zlib
from typing import NamedTuple, NoReturn

# The records that torch writes, behind the archive's own prefix.
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
# Choices far above what a trace needs: one record for each tensor, about 100 bytes for each record.
MAX_RECORDS = 4096
MAX_DIRECTORY = 1 << 20  # bytes
ALIGNMENT = 64  # bytes; torch aligns to 64 as well, so that any type can be mapped
WIDE = 0xFFFFFFFF  # "see the 64-bit field"

_LOCAL = 30  # bytes of a local header without name and extra fields
_ENTRY = 46  # of an entry of the directory
_END = 22  # of the end record
_LOCATOR = 20
_WIDE_END = 56  # of the 64-bit end record


class Refused(Exception):
    """What is wrong with a file, in words."""


class Record(NamedTuple):
    """Where the bytes of one record lie.

    Attributes:
        header: Where its local header starts.
        start: Where its data start.
        size: Bytes of its data.
    """

    header: int
    start: int
    size: int


def refuse(why: str) -> NoReturn:
    """Raise `Refused`.

    Args:
        why: In words, after "FILE is refused: ".
    """
    raise Refused(why)


def short(text: object) -> str:
    """Quote what a stranger wrote, on one line.

    Args:
        text: Of any length.
    """
    return ascii(str(text)[:60])


class _Directory(NamedTuple):
    """Where the central directory lies: its records, bytes, start, and where it must end."""

    records: int
    length: int
    start: int
    end: int


class _Listed(NamedTuple):
    """One entry of the directory; `after` is the position behind it."""

    name: str
    header: int
    size: int
    after: int


def directory(fd: int, size: int) -> dict[str, Record]:
    """Return the records of an archive by name, without the archive's own prefix.

    Args:
        fd: The open file.
        size: Its bytes.

    Raises:
        Refused: A record is compressed, overlaps another, or is not one that torch writes.
    """
    place = _end(fd, size)
    too_large = place.records > MAX_RECORDS or place.length > MAX_DIRECTORY
    if too_large or place.start + place.length != place.end:
        refuse("its archive directory is too large or not where it says")
    table = os.pread(fd, place.length, place.start)
    at = 0
    prefixes = set[str]()
    found: dict[str, Record] = {}
    for _ in range(place.records):
        listed = _listed(table, at)
        at = listed.after
        match = NAME.fullmatch(listed.name)
        if match is None or match[2] in found:
            refuse(f"the archive holds an unexpected or repeated record {short(listed.name)}")
        prefixes.add(match[1])
        start = _data(fd, listed.header, listed.name, size)
        found[match[2]] = Record(listed.header, start, listed.size)
    spans = sorted((r.header, r.start + r.size) for r in found.values())
    spans.append((place.start, place.end))
    if any(stop > after for (_, stop), (after, _) in itertools.pairwise(spans)):
        refuse("records of the archive overlap or reach past its end")
    if "data.pkl" not in found or len(prefixes) != 1:
        refuse("the archive has no index, or several")
    return found


def _end(fd: int, size: int) -> _Directory:
    """Read the end record, which closes the file without a comment, and the 64-bit one if any."""
    here = size - _END
    tail = os.pread(fd, _END, here) if here >= 0 else b""
    if len(tail) < _END or tail[:4] != b"PK\5\6" or tail[20:] != b"\0\0":
        refuse("it is no trace, or was cut short (expected a .pt archive as torch writes it)")
    count, length, start = struct.unpack("<HII", tail[10:20])
    locator = b""
    if here >= _LOCATOR + _WIDE_END:
        locator = os.pread(fd, _LOCATOR, here - _LOCATOR)
    if locator[:4] != b"PK\6\7":
        return _Directory(count, length, start, here)
    at = here - _LOCATOR - _WIDE_END
    record = os.pread(fd, _WIDE_END, at)
    if struct.unpack("<Q", locator[8:16]) != (at,) or record[:4] != b"PK\6\6":
        refuse("its archive directory is not where it says")
    count, length, start = struct.unpack("<QQQ", record[32:56])
    return _Directory(count, length, start, at)


def _listed(table: bytes, at: int) -> _Listed:
    """Read one entry of the directory."""
    if at + _ENTRY > len(table):
        refuse("its archive directory is cut short")
    sign, flags, method, packed, size, n, e, c, offset = struct.unpack_from(
        "<4s4xHH8xIIHHH8xI", table, at
    )
    # Behind the entry come the name (n bytes), the extra fields (e) and a comment (c).
    behind = at + _ENTRY
    name = table[behind : behind + n].decode("latin-1")
    extra = table[behind + n : behind + n + e]
    if sign != b"PK\1\2" or method != 0 or flags & 1:
        refuse(
            f"record {short(name)} is compressed, encrypted or damaged; a trace is stored as it is"
        )
    # The 64-bit values stand in this order, each only if its field holds `WIDE`.
    wide = _wide(extra)
    values = []
    for value in (size, packed, offset):
        values.append(wide.pop(0) if value == WIDE and wide else value)
    size, packed, offset = values
    if size != packed:
        refuse(f"record {short(name)} lies about its size")
    return _Listed(name, offset, size, behind + n + e + c)


def _wide(extra: bytes) -> list[int]:
    """Return the 64-bit values among the extra fields of a record (field 1 of APPNOTE 4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1:
            field = extra[at : at + length]
            whole = field[: length // 8 * 8]
            return [value for (value,) in struct.iter_unpack("<Q", whole)]
        at += length
    return []


def _data(fd: int, header: int, name: str, size: int) -> int:
    """Return where the data of a record start; its local header must bear the same name."""
    head = os.pread(fd, _LOCAL, header) if header < size else b""
    if len(head) < _LOCAL or head[:4] != b"PK\3\4" or head[8:10] != b"\0\0":
        refuse(f"record {short(name)} is not where the directory says")
    n, e = struct.unpack("<HH", head[26:30])
    if os.pread(fd, n, header + _LOCAL) != name.encode("latin-1"):
        refuse(f"record {short(name)} bears two names")
    return header + _LOCAL + int(n) + int(e)


class Writer:
    """Lays out records one after the other, each aligned to 64 bytes; their data are holes.

    Attributes:
        prefix: The archive's own, in front of every name.
        at: Where the next record starts.
        records: By name, without the prefix.
    """

    _VERSION = 45  # of the format: 64-bit sizes
    _UTF8 = 0x800
    _DATE = 0x21  # 1 January 1980, the first that the format has
    _PADDING = 0x4246  # the extra field by which torch pads, "FB"

    def __init__(self, prefix: str = "trace") -> None:
        """Start empty.

        Args:
            prefix: The archive's own, in front of every name.
        """
        self.prefix = prefix
        self.at = 0
        self.records: dict[str, Record] = {}
        self._pieces: list[tuple[int, bytes]] = []

    def add(self, name: str, size: int, data: bytes = b"") -> Record:
        """Append a record.

        Args:
            name: Without the prefix.
            size: Its bytes.
            data: The first of them, if they are known.
        """
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
        """Return what stands behind the last record.

        Args:
            crc: Checksums of the records that have one.
        """
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
        """Return the entry of one record in the directory."""
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
        """Write the headers and the data known so far.

        Args:
            fd: The open file.
        """
        for at, piece in self._pieces:
            os.pwrite(fd, piece, at)
