"""The container of a .pt file: a zip archive of stored records, read against what torch writes and nothing else, and written sparse.

Records are stored, never compressed, so that a tensor can be mapped. What is written here carries 64-bit sizes throughout and
no checksum of the tensors, which are filled in later; their integrity is a sha256 beside the file.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import zlib
from typing import NamedTuple, NoReturn

NAME = re.compile(
    r"([^/\\]+)/(data\.pkl|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d{1,9})"
)
MAX_RECORDS, MAX_DIRECTORY = 4096, 1 << 20
ALIGNMENT = 64
WIDE = 0xFFFFFFFF  # "see the 64-bit field"


class Refused(Exception):
    """What is wrong with a file, in words."""


class Record(NamedTuple):
    """Where the bytes of one record lie; `header` is where the record itself starts."""

    header: int
    start: int
    size: int


def refuse(why: str) -> NoReturn:
    """Raise `Refused`."""
    raise Refused(why)


def short(text: object) -> str:
    """Quote what a stranger wrote, on one line."""
    return ascii(str(text)[:60])


def directory(fd: int, size: int) -> dict[str, Record]:
    """Return the records of an archive of `size` bytes by name, without the archive's own prefix.

    Raises Refused unless every record is stored, lies apart from the others, and is one that torch writes.
    """
    count, length, start, end = _end(fd, size)
    if count > MAX_RECORDS or length > MAX_DIRECTORY or start + length != end:
        refuse("its archive directory is too large or not where it says")
    table, at, prefixes = os.pread(fd, length, start), 0, set()
    found: dict[str, Record] = {}
    for _ in range(count):
        name, header, bytes_, at = _listed(table, at)
        match = NAME.fullmatch(name)
        if match is None or match[2] in found:
            refuse(f"the archive holds an unexpected or repeated record {short(name)}")
        prefixes.add(match[1])
        found[match[2]] = Record(header, _data(fd, header, name, size), bytes_)
    spans = [*sorted((r.header, r.start + r.size) for r in found.values()), (start, end)]
    if any(stop > after for (_, stop), (after, _) in itertools.pairwise(spans)):
        refuse("records of the archive overlap or reach past its end")
    if "data.pkl" not in found or len(prefixes) != 1:
        refuse("the archive has no index, or several")
    return found


def _end(fd: int, size: int) -> tuple[int, int, int, int]:
    """Return count, length and start of the directory, and where it must end; the end record closes the file, without a comment."""
    here = size - 22
    tail = os.pread(fd, 22, here) if here >= 0 else b""
    if len(tail) < 22 or tail[:4] != b"PK\5\6" or tail[20:] != b"\0\0":
        refuse("it is no trace, or was cut short (expected a .pt archive as torch writes it)")
    count, length, start = struct.unpack("<HII", tail[10:20])
    locator = os.pread(fd, 20, here - 20) if here >= 76 else b""
    if locator[:4] != b"PK\6\7":
        return count, length, start, here
    at = here - 76
    record = os.pread(fd, 56, at)
    if struct.unpack("<Q", locator[8:16]) != (at,) or record[:4] != b"PK\6\6":
        refuse("its archive directory is not where it says")
    count, length, start = struct.unpack("<QQQ", record[32:56])
    return count, length, start, at


def _listed(table: bytes, at: int) -> tuple[str, int, int, int]:
    """Return name, offset and size of one record in the directory, and the position after it."""
    if at + 46 > len(table):
        refuse("its archive directory is cut short")
    sign, flags, method, packed, size, n, e, c, offset = struct.unpack_from(
        "<4s4xHH8xIIHHH8xI", table, at
    )
    name, extra = (
        table[at + 46 : at + 46 + n].decode("latin-1"),
        table[at + 46 + n : at + 46 + n + e],
    )
    if sign != b"PK\1\2" or method != 0 or flags & 1:
        refuse(
            f"record {short(name)} is compressed, encrypted or damaged; a trace is stored as it is"
        )
    wide = _wide(extra)
    size, packed, offset = (
        wide.pop(0) if value == WIDE and wide else value for value in (size, packed, offset)
    )
    if size != packed:
        refuse(f"record {short(name)} lies about its size")
    return name, offset, size, at + 46 + n + e + c


def _wide(extra: bytes) -> list[int]:
    """Return the 64-bit fields of a record."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            return [
                v
                for (v,) in struct.iter_unpack(
                    "<Q", extra[at + 4 : at + 4 + length][: length // 8 * 8]
                )
            ]
        at += 4 + length
    return []


def _data(fd: int, header: int, name: str, size: int) -> int:
    """Return where the data of a record start; its own header must bear the same name."""
    head = os.pread(fd, 30, header) if header < size else b""
    if len(head) < 30 or head[:4] != b"PK\3\4" or head[8:10] != b"\0\0":
        refuse(f"record {short(name)} is not where the directory says")
    n, e = struct.unpack("<HH", head[26:30])
    if os.pread(fd, n, header + 30) != name.encode("latin-1"):
        refuse(f"record {short(name)} bears two names")
    return header + 30 + int(n) + int(e)


class Writer:
    """Lays out records one after the other, each aligned to 64 bytes; record data are left as holes."""

    def __init__(self, prefix: str = "trace") -> None:
        self.prefix, self.at = prefix, 0
        self.records: dict[str, Record] = {}
        self._pieces: list[tuple[int, bytes]] = []

    def add(self, name: str, size: int, data: bytes = b"") -> Record:
        """Append a record of `size` bytes, of which `data` come first."""
        full = f"{self.prefix}/{name}".encode()
        bare = self.at + 30 + len(full) + 20 + 4
        pad = -bare % ALIGNMENT
        extra = struct.pack("<HHQQHH", 1, 16, size, size, 0x4246, pad) + bytes(pad)
        head = struct.pack(
            "<4sHHHHHIIIHH",
            b"PK\3\4",
            45,
            0x800,
            0,
            0,
            0x21,
            zlib.crc32(data),
            WIDE,
            WIDE,
            len(full),
            len(extra),
        )
        record = self.records[name] = Record(self.at, bare + pad, size)
        self._pieces.append((self.at, head + full + extra + data))
        self.at = record.start + size
        return record

    def directory(self, crc: dict[str, int]) -> bytes:
        """Return what stands behind the last record; crc: checksums of the records that have one."""
        out = b""
        for name, record in self.records.items():
            full, extra = (
                f"{self.prefix}/{name}".encode(),
                struct.pack("<HHQQQ", 1, 24, record.size, record.size, record.header),
            )
            fields = (
                45,
                45,
                0x800,
                0,
                0,
                0x21,
                crc.get(name, 0),
                WIDE,
                WIDE,
                len(full),
                len(extra),
                0,
                0,
                0,
                0,
                WIDE,
            )
            out += struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", *fields) + full + extra
        count, end = len(self.records), self.at + len(out)
        out += struct.pack(
            "<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(out), self.at
        )
        out += struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
        return out + struct.pack(
            "<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, end - self.at, min(self.at, WIDE), 0
        )

    def write(self, fd: int) -> None:
        """Write the headers and the data known so far."""
        for at, piece in self._pieces:
            os.pwrite(fd, piece, at)
