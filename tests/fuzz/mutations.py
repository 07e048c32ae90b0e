"""Changed copies of the files that leakaudit reads, at each level of their format.

A random.Random decides everything, so a case is reproduced by its number. Flipped bits alone are
refused by the first check of a reader. So every format is also taken apart, changed at one place
with a value that is wrong there, and put together again with sizes and checksums that fit.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

CANARY = (
    "CANARY"  # part of every text that must not act, and name of every command that must not run
)

TEXTS = (
    *("", " ", "nan", "inf", "-1", "1e999", "0x10", "true", "null", "auto", "node:0", "all"),
    *("\x1b[2J\x1b[31mCANARY\x1b[0m", "\x1b]0;CANARY\x07", "\x9b31mCANARY", "\x00CANARY", "\x7f"),
    *("\u202eCANARY\u202c", "\u2066CANARY\u2069", "a\u2028b", "\uffffCANARY", "e\u0301" * 50),
    *("CANARY\r\n::stop-commands::t", "\n::error::CANARY", "##[stop-commands]CANARY"),
    *("::set-output name=CANARY::1", "::CANARY:: " * 20, "x" * 79 + " ::CANARY::", "##vso[CANARY]"),
    *("<script>CANARY</script>", '"><img src=x onerror=CANARY>', "javascript:CANARY", "]]>CANARY"),
    *(
        "[CANARY](http://canary.invalid)",
        "http://canary.invalid/CANARY",
        "| CANARY | b |",
        "`CANARY`",
    ),
    *("{{7*7}}CANARY", "${{ CANARY }}", "{0.__class__}", "%s%n", "=CANARY()", "@CANARY"),
    *("../../CANARY", "/CANARY", "~/CANARY", "C:\\CANARY", "canary_mod:boom", "os:system"),
    *("builtins:eval", "__class__", "A" * 100_000, "9" * 5_000),
)
WHOLE = (
    *(0, -1, 1, 2, 3, 7, 127, 128, 255, 256, 65_535, 10**6, 10**7, 10**9, 2**31 - 1, 2**31),
    *(-(2**31), 2**32, 2**40, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**20, 10**400),
)
REAL = (
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1e-320, 1e-45, 1e39, 1e300, -1e300, 1e308),
    *(math.inf, -math.inf, math.nan),
)
# What all values of one key become at once.
EXTREME = (1.7e308, -1.7e308, 5e-324, 1e-310, 2**63, -(2**63), 10**400, 0, -1)
REPEATS = (0, 1, 2, 100, 5_000)
DEPTHS = (5, 50, 600)
ENTRIES = 2_000_000  # of a JSON value, tens of MB


# ---------------------------------------------------------------------------------------------
# Bytes
# ---------------------------------------------------------------------------------------------


def mutate_bytes(r: Random, data: bytes) -> bytes:
    """Flip, overwrite, cut, insert or repeat bytes at up to 16 places."""
    out = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at = r.randrange(len(out))
        n = r.choice((1, 1, 2, 4, 8, 64, 512))
        match r.randrange(8):
            case 0:
                out[at] ^= 1 << r.randrange(8)
            case 1:
                out[at : at + n] = r.randbytes(min(n, len(out) - at))
            case 2:
                del out[at:]
            case 3:
                del out[at : at + n]
            case 4:
                out[at:at] = r.randbytes(n)
            case 5:
                out[at:at] = out[at : at + n] * r.choice((1, 8))
            case 6:
                out[at : at + n] = bytes((r.choice((0, 0x7F, 0x80, 0xFF)),)) * n
            case _:
                number = r.choice((0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))
                out[at : at + 8] = struct.pack("<Q", number)[: len(out) - at]
    return bytes(out)


def mutate_text(r: Random, text: str) -> str:
    """Exchange, drop or repeat lines and words of a text."""
    lines = text.split("\n")
    for _ in range(r.choice((1, 1, 2, 4))):
        at = r.randrange(len(lines))
        words = lines[at].split(" ")
        k = r.randrange(len(words))
        match r.randrange(6):
            case 0:
                words[k] = _text(_odd(r, words[k]))[:100_000]
            case 1:
                words[k:k] = [words[k]] * r.choice((1, 2, 40, 3_000))
            case 2:
                del words[k]
            case 3:
                other = r.choice(lines).split(" ")
                words[k] = r.choice(other)
            case 4:
                words[k] = words[k].translate({ord(x): y for x, y in (("[", "("), ("=", "=="))})
            case _:
                words[k] = r.choice("()[]{}+-*/^,:=\"'#") * r.choice((1, 2, 500)) + words[k]
        lines[at] = " ".join(words)
        if r.random() < 0.2:
            lines[at:at] = [lines[at]] * r.choice((1, 2, 300))
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------
# JSON and TOML
# ---------------------------------------------------------------------------------------------


def _odd(r: Random, like: Any) -> Any:
    """A value that a reader may not expect, often of the same type as `like`."""
    if r.random() < 0.4:
        if isinstance(like, bool):
            return not like
        if isinstance(like, int):
            return r.choice(WHOLE)
        if isinstance(like, float):
            return r.choice(REAL)
        if isinstance(like, str):
            return r.choice(TEXTS)
    match r.randrange(8):
        case 0:
            return r.choice(TEXTS)
        case 1:
            return r.choice((*WHOLE, *REAL))
        case 2:
            return None
        case 3:
            return r.random() < 0.5
        case 4:
            return [like] * r.choice(REPEATS)
        case 5:
            return {r.choice(TEXTS): like}
        case 6:
            for _ in range(r.choice(DEPTHS)):
                like = [like] if r.random() < 0.5 else {"a": like}
            return like
        case _:
            return r.choice(({}, [], _text(like)))


def _text(value: Any) -> str:
    """Return a value as text; one that is nested too deeply as its kind."""
    try:
        return str(value)
    except RecursionError:
        return type(value).__name__


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index) of a tree, at most 4,000."""
    todo = [tree]
    found = 0
    while todo and found < 4_000:
        at = todo.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        for key in keys:
            yield at, key
            found += 1
            if isinstance(at[key], dict | list):
                todo.append(at[key])


def _is_huge(tree: Any) -> bool:
    """Whether a tree has more than `ENTRIES` entries; long texts count as several.

    A repeated entry whose parts are repeated in turn would take minutes to write.
    """
    todo = [tree]
    count = 0
    while todo and count <= ENTRIES:
        at = todo.pop()
        count += 1
        if isinstance(at, dict):
            todo += at.values()
        elif isinstance(at, list):
            todo += at
        elif isinstance(at, str):
            count += len(at) // 10
    return count > ENTRIES


def _everywhere(r: Random, places: list[tuple[Any, Any]]) -> None:
    """Set all numbers under one key to extremes, or empty all its lists: one wrong number among
    many is often overlooked or outvoted.
    """
    keys = []
    for holder, key in places:
        value = holder[key]
        number = isinstance(value, int | float | list) and not isinstance(value, bool)
        if isinstance(holder, dict) and number:
            keys.append(key)
    if not keys:
        return
    chosen = r.choice(keys)
    empty = r.random() < 0.2
    some = r.sample(EXTREME, r.choice((1, 1, 2)))
    for holder, key in places:
        if isinstance(holder, dict) and key == chosen:
            if isinstance(holder[key], list) and empty:
                holder[key] = []
            else:
                holder[key] = _extreme(r, holder[key], some)


def _extreme(r: Random, value: Any, some: list[float]) -> Any:
    """A value with other numbers."""
    if isinstance(value, list):
        return [_extreme(r, one, some) for one in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return r.choice(some)
    return value


def mutate_tree(r: Random, tree: Any, times: int = 0) -> Any:
    """Change some places of a JSON value: other values, lost, renamed, repeated, moved entries."""
    sound = tree
    try:
        tree = pickle.loads(pickle.dumps(tree))  # three times as fast as deepcopy
    except RecursionError:  # it has been mutated before
        return tree
    for _ in range(times or r.choice((1, 1, 1, 2, 3, 6))):
        places = list(_places(tree)) if isinstance(tree, dict | list) else []
        if not places:
            return _odd(r, tree)
        holder, key = r.choice(places)
        do = r.random()
        if do < 0.15:
            _everywhere(r, places)
        elif do < 0.62:
            holder[key] = _odd(r, holder[key])
        elif do < 0.72 and isinstance(holder, dict):
            del holder[key]
        elif do < 0.82 and isinstance(holder, dict):
            holder[r.choice(TEXTS)] = holder.pop(key)
        elif do < 0.92 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * r.choice((1, 2, 50))
        else:
            other, at = r.choice(places)
            with suppress(RecursionError):  # earlier changes may have nested it too deeply
                holder[key] = pickle.loads(pickle.dumps(other[at]))
    return sound if _is_huge(tree) else tree


def _with_long_numbers(write: Callable[[], str]) -> bytes:
    """Write a text in which numbers may have more than Python's 4,300 digits."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return write().encode("utf-8", "surrogatepass")
    finally:
        sys.set_int_max_str_digits(limit)


def as_json(tree: Any) -> bytes:
    """Write a tree as JSON; NaN and infinity are written as Python does."""
    try:
        return _with_long_numbers(lambda: json.dumps(tree))
    except RecursionError:  # of the writer; readers must have a limit of their own
        return b"[" * 5_000


def mutate_json(r: Random, data: bytes) -> bytes:
    """Change a JSON file: mostly its values, sometimes its bytes."""
    if r.random() < 0.1:
        return mutate_bytes(r, data)
    return as_json(mutate_tree(r, json.loads(data)))


def _no_null(tree: Any) -> Any:
    """The tree without null, which TOML does not have."""
    if isinstance(tree, dict):
        return {str(key): _no_null(one) for key, one in tree.items() if one is not None}
    if isinstance(tree, list):
        return [_no_null(one) for one in tree if one is not None]
    return tree


def as_toml(tree: Any) -> bytes:
    """Write a tree as TOML."""
    try:
        plain = _no_null(tree)
        table = plain if isinstance(plain, dict) else _no_null({"x": plain})
        return _with_long_numbers(lambda: tomli_w.dumps(table))
    except RecursionError:  # of the writer; readers must have a limit of their own
        return b"x = " + b"[" * 5_000


def mutate_toml(
    r: Random, tree: Any, allowed: Callable[[str, object], bool] = lambda key, value: True
) -> bytes:
    """Write a changed tree as TOML; some cases change the text itself. Entries that are not
    allowed are left out.
    """
    changed = mutate_tree(r, tree)
    for holder, key in [*_places(changed)] if isinstance(changed, dict | list) else []:
        if isinstance(holder, dict) and not allowed(str(key), holder[key]):
            holder[key] = 3
    data = as_toml(changed)
    do = r.random()
    if do < 0.1:
        return mutate_bytes(r, data)
    if do < 0.3:
        return mutate_text(r, data.decode("utf-8", "replace")).encode("utf-8", "replace")
    return data


# ---------------------------------------------------------------------------------------------
# Pickles and zip archives: the container of torch files
# ---------------------------------------------------------------------------------------------

# What an index must never be able to do.
EVIL = (
    b"cos\nsystem\nX\x0c\x00\x00\x00touch CANARY\x85R",
    b"cbuiltins\neval\nX\x18\x00\x00\x00__import__('canary_mod')\x85R",
    b"ccanary_mod\nboom\n)R",
    b"\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch CANARY\x85R",
    b"(S'touch CANARY'\nios\nsystem\n",
    b"cposix\nsystem\nX\x02\x00\x00\x00id\x85R",
    b"ctorch._utils\n_rebuild_tensor_v2\n)R",
    b"ctorch\nload\nX\x01\x00\x00\x00a\x85R",
    b"ccollections\nOrderedDict\n)R",
    b"ctorch FloatStorage\n\n",
    b"cnumpy.core.multiarray\n_reconstruct\n)R",
    b"cfunctools\npartial\ncos\nsystem\n\x85R",
    b"}b",
    b"\x82\x01",
)
STORAGES = (b"FloatStorage", b"DoubleStorage", b"BoolStorage", b"QInt8Storage", b"Tensor")


def mutate_pickle(r: Random, data: bytes) -> bytes:
    """Change, drop, repeat, exchange or insert opcodes."""
    ops = [(op, at) for op, _, at in pickletools.genops(data)]
    ends = [*(at for _, at in ops[1:]), len(data)]
    pieces = [data[at:end] for (_, at), end in zip(ops, ends, strict=True)]
    names = [op.name for op, _ in ops]
    for _ in range(r.choice((1, 1, 2, 5))):
        if len(pieces) < 3:
            break
        k = r.randrange(1, len(pieces))
        do = r.randrange(7)
        name = names[k] if k < len(names) else ""
        if do <= 2 and name in ("BININT", "BININT1", "BININT2", "LONG1"):
            number = r.choice((*WHOLE, 2**47, 2**48, 2**200))
            pieces[k] = pickle.dumps(number, protocol=2)[2:-1]
        elif do <= 2 and name == "BINUNICODE":
            text = r.choice(TEXTS).encode("utf-8", "surrogatepass")
            pieces[k] = b"X" + struct.pack("<I", len(text)) + text
        elif do <= 2 and name == "GLOBAL":
            pieces[k] = b"ctorch\n" + r.choice(STORAGES) + b"\n"
        elif do == 3:
            del pieces[k]
        elif do == 4:
            pieces[k:k] = [pieces[k]] * r.choice((1, 3, 40, 40, 10_000))
        elif do == 5:
            pieces[k:k] = [r.choice(EVIL)]
        else:
            j = r.randrange(1, len(pieces))
            pieces[k], pieces[j] = pieces[j], pieces[k]
    return b"".join(pieces)


def entries(data: bytes) -> list[tuple[str, bytes]]:
    """The records of a sound archive, found by its directory; checksums are not compared, because
    a trace has none of its tensors.
    """
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        for info in file.infolist():
            name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
            begin = info.header_offset + 30 + name + extra
            if info.compress_type == zipfile.ZIP_STORED:
                body = data[begin : begin + info.file_size]
            else:
                body = file.read(info)
            found.append((info.filename, body))
    return found


def zipped(records: list[tuple[str, bytes]]) -> bytes:
    """An archive as torch writes it: not compressed, tensors at multiples of 64 bytes."""
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(out, "w") as file:
        for name, body in records:
            info = zipfile.ZipInfo(name)
            if "/data/" in name:
                begin = out.tell() + 30 + len(name.encode()) + 4
                pad = -begin % 64
                info.extra = struct.pack("<HH", 0x4246, pad) + bytes(pad)
            file.writestr(info, body)
    return out.getvalue()


def mutate_zip(r: Random, data: bytes) -> bytes:
    """Change an archive: names, links, compression, lost, doubled, changed records, directory."""
    do = r.randrange(13)
    if do >= 6:
        return _patched(r, data, do)
    out = io.BytesIO()
    # Names that occur twice are meant.
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(out, "w") as file:
        for name, body in entries(data):
            info = zipfile.ZipInfo(name)
            hit = r.random() < 0.4
            if do == 0 and hit:
                names = ("../" * 5 + CANARY, "/CANARY", name.upper(), name * 100, "\x1b[2J" + name)
                info.filename = r.choice(names)
            elif do == 1 and hit:
                info.external_attr = 0o120777 << 16  # a symbolic link
            elif do == 2 and hit:
                info.compress_type = r.choice(
                    (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
                )
            elif do == 3 and hit:
                body = mutate_bytes(r, body)
            elif do == 4 and hit:
                continue
            file.writestr(info, body)
            if do == 5 and hit:
                file.writestr(zipfile.ZipInfo(name), mutate_bytes(r, body))
    return out.getvalue()


def _patched(r: Random, data: bytes, do: int) -> bytes:
    """Change the bytes around an archive, or numbers of its directory."""
    raw = bytearray(data)
    if do == 6:
        return b"MZ" * r.randrange(1, 100) + data
    if do == 7:
        return data + bytes(r.choice((1, 22, 70_000)))
    if do == 8:
        return mutate_bytes(r, data)
    end = raw.rfind(b"PK\5\6")
    if do == 9 and end >= 0:
        numbers = r.choice((0, 1, 2**16 - 1)), r.choice((0, 5, len(raw), 2**32 - 1))
        struct.pack_into("<HHII", raw, end + 8, numbers[0], numbers[0], numbers[1], numbers[1])
        return bytes(raw)
    heads = []
    at = raw.find(b"PK\1\2")
    while at >= 0:
        heads.append(at)
        at = raw.find(b"PK\1\2", at + 4)
    if not heads:
        return mutate_bytes(r, data)
    for _ in range(r.choice((1, 2))):
        head = r.choice(heads)
        if do == 10:  # two records at one place
            (value,) = struct.unpack_from("<I", raw, r.choice(heads) + 42)
            struct.pack_into("<I", raw, head + 42, value)
            continue
        field, form = r.choice(
            (
                *((8, "<H"), (10, "<H"), (28, "<H"), (30, "<H"), (32, "<H")),
                *((16, "<I"), (20, "<I"), (24, "<I"), (38, "<I"), (42, "<I")),
            )
        )
        largest = 2 ** (8 * struct.calcsize(form)) - 1
        value = r.choice((0, 1, 8, 12, 99, largest, largest >> 1, r.randrange(len(raw))))
        struct.pack_into(form, raw, head + field, value & largest)
    return bytes(raw)


# ---------------------------------------------------------------------------------------------
# Tensors and torch files
# ---------------------------------------------------------------------------------------------

DTYPES = (
    *(torch.float64, torch.float16, torch.bfloat16, torch.int64),
    *(torch.int8, torch.uint8, torch.bool),
)


def _mutate_tensor(r: Random, value: Tensor) -> Tensor:
    """Another number format, other values, or another shape."""
    match r.randrange(7):
        case 0:
            return value.to(r.choice(DTYPES))
        case 1 if value.numel():
            flat = value.clone().reshape(-1)
            for _ in range(r.choice((1, 3, 20))):
                k = r.randrange(len(flat))
                if value.is_floating_point():
                    flat[k] = r.choice((math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-45, 0.0))
                elif value.dtype == torch.bool:
                    flat[k] = r.random() < 0.5
                else:
                    limits = torch.iinfo(value.dtype)
                    odd = (0, 1, 2, 5, limits.min, limits.max, limits.max - 1)
                    flat[k] = r.choice(odd)
            return flat.reshape(value.shape)
        case 2 if value.dim():
            return value[: r.randrange(len(value) + 1)].clone()
        case 3 if value.dim():
            return torch.cat([value] * r.choice((2, 5)))
        case 4:
            return value.reshape(-1) if value.dim() > 1 else value[None]
        case 5 if value.is_floating_point():
            return torch.full_like(value, r.choice((math.nan, math.inf, 0.0, 6e4)))
        case _:
            return torch.zeros(0, dtype=value.dtype)


def _tensor_places(tree: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    found = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _tensor_places(value)
        elif isinstance(value, Tensor):
            found.append((tree, key))
    return found


def mutate_tensors(r: Random, tree: dict[str, Any]) -> dict[str, Any]:
    """Change tensors and the description `meta`, in place; the file stays well-formed."""
    for _ in range(r.choice((1, 1, 2, 3))):
        if r.random() < 0.5 and isinstance(tree.get("meta"), str):
            try:
                about = json.loads(tree["meta"])
            except (ValueError, RecursionError):
                continue
            tree["meta"] = as_json(mutate_tree(r, about)).decode("utf-8", "replace")
            continue
        places = _tensor_places(tree)
        if not places:
            break
        holder, key = r.choice(places)
        do = r.random()
        if do < 0.05:
            del holder[key]
        elif do < 0.12:
            holder[r.choice(TEXTS)] = holder[key]
        else:
            holder[key] = _mutate_tensor(r, holder[key])
    return tree


def torch_bytes(tree: Any) -> bytes:
    """A torch file."""
    out = io.BytesIO()
    torch.save(tree, out)
    return out.getvalue()


def mutate_torch(r: Random, data: bytes) -> bytes:
    """Change a torch file at one of its levels: tensors, pickle, archive, bytes."""
    do = r.random()
    if do < 0.5:
        return torch_bytes(mutate_tensors(r, torch.load(io.BytesIO(data), weights_only=True)))
    if do < 0.75:
        changed = []
        for name, body in entries(data):
            if name.endswith("data.pkl"):
                body = mutate_pickle(r, body.rstrip(b"\0"))
            changed.append((name, body))
        return zipped(changed)
    if do < 0.92:
        return mutate_zip(r, data)
    return mutate_bytes(r, data)


# ---------------------------------------------------------------------------------------------
# npy, npz, safetensors
# ---------------------------------------------------------------------------------------------

SHAPES = (
    *("(10**9,)", "(-1,)", "(1000000000, 1000000000)", "(2,) * 70", "(1e3,)", "()", "'a'"),
    *("(99999999999999999999,)", "(2147483648,)", "(3, 0)", "(True,)", "None", "((1,),)"),
)
FORMATS = (
    *("'|O'", "'<f2'", "'>f8'", "'<c16'", "'<M8[s]'", "'|V1000000000'", "'<U2000000000'", "'|S1'"),
    *("'|b1'", "''", "'<f16'", "[('a', '<f8'), ('b', '|O')]", "1", "'<f4,<f4'"),
)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """An array as .npy."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def mutate_npy(r: Random, data: bytes) -> bytes:
    """Change an array file: a header that lies, or bytes."""
    if r.random() < 0.3:
        return mutate_bytes(r, data)
    (size,) = struct.unpack("<H", data[8:10])
    body = data[10 + size :]
    header = eval(data[10 : 10 + size])  # our own file
    head = {key: repr(value) for key, value in header.items()}
    for key in r.sample(sorted(head), r.choice((1, 1, 2))):
        odd = {"shape": SHAPES, "descr": FORMATS, "fortran_order": ("True", "1", "None")}
        head[key] = r.choice(odd[key])
    if r.random() < 0.1:
        del head[r.choice(sorted(head))]
    text = "{" + ", ".join(f"'{key}': {value}" for key, value in head.items()) + ", }"
    if r.random() < 0.1:
        text = "(" * r.choice((1, 100, 300)) + text
    raw = text.encode("latin-1", "replace")
    version = r.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\0"))
    length = len(raw) if r.random() < 0.9 else 65_535
    form = "<H" if version == b"\1\0" else "<I"
    return b"\x93NUMPY" + version + struct.pack(form, length) + raw + body


def mutate_npz(r: Random, data: bytes) -> bytes:
    """Change an archive of arrays: one array, its header, or the archive."""
    arrays = dict(np.load(io.BytesIO(data), allow_pickle=False))
    name = r.choice(sorted(arrays))
    files = {key: npy(value) for key, value in arrays.items()}
    array = arrays[name]
    do = r.randrange(9)
    if do == 0:
        del files[name]
    elif do == 1:
        odd = array
        if array.dtype.kind in "fiub":
            odd = array.astype(r.choice(("f2", "f8", "i1", "c8", "U8", "S3", "?")))
        files[name] = npy(odd)
    elif do == 2 and array.size and array.dtype.kind in "fiu":
        odd = array.astype("f8" if array.dtype.kind == "f" else "i8")
        values = (math.nan, math.inf, 1e300) if odd.dtype.kind == "f" else (-1, 2**31, 2**62)
        odd.reshape(-1)[r.randrange(odd.size)] = r.choice(values)
        files[name] = npy(odd)
    elif do == 3:
        files[name] = npy(r.choice((array[None], array.reshape(-1)[: r.randrange(array.size + 1)])))
    elif do == 4:
        files[r.choice(TEXTS).replace("\0", "") or "x"] = files[name]
    elif do == 5:
        files[name] = npy(np.array([{"a": 1}, None], dtype=object))
    elif do == 6:
        return mutate_zip(r, data)
    elif do == 7:
        return _bomb(r, files, name, array)
    else:
        files[name] = mutate_npy(r, files[name])
    return zipped([(f"{key[:1_000]}.npy", body) for key, body in files.items()])


def _bomb(r: Random, files: dict[str, bytes], name: str, array: np.ndarray[Any, Any]) -> bytes:
    """An archive in which one array claims and unpacks to 1,000 times its file's size."""
    (first, *rest) = array.shape or (1,)
    row = max(1, array.nbytes // max(1, first))
    size = 250_000_000 if r.random() < 0.1 else 20_000_000
    rows = max(1, size // row)
    head = npy(np.empty((0, *rest), array.dtype))
    text = head[10:].decode("latin-1").replace("(0,", f"({rows},").rstrip() + "\n"
    begin = head[:8] + struct.pack("<H", len(text)) + text.encode("latin-1")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for key, body in files.items():
            file.writestr(f"{key}.npy", begin + bytes(rows * row) if key == name else body)
        for k in range(r.choice((0, 0, 0, 10))):  # each is small enough
            file.writestr(f"public.{k}.npy", begin + bytes(rows * row // 10))
    return out.getvalue()


def deflated(data: bytes) -> bytes:
    """The same archive with compressed records."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, body in entries(data):
            file.writestr(name, body)
    return out.getvalue()


def mutate_safetensors(r: Random, data: bytes) -> bytes:
    """Change a safetensors file: its description, its header, its sizes, or bytes."""
    if r.random() < 0.2:
        return mutate_bytes(r, data)
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + n])
    about = head.get("__metadata__", {})
    if "meta" in about and r.random() < 0.4:
        changed = mutate_tree(r, json.loads(about["meta"]))
        about["meta"] = as_json(changed).decode("utf-8", "replace")
    else:
        head = mutate_tree(r, head)
    raw = as_json(head)
    size = len(raw)
    if r.random() < 0.15:
        size = r.choice((0, 2**63, size + 10, 2**32, 100_000_001))
    return struct.pack("<Q", size) + raw + data[8 + n :]
