"""Reading of TOML files written by people: typed values, or an error with file, key and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leakaudit.core.errors import LeakauditError, brief, suggest

if TYPE_CHECKING:
    from msgspec import Struct

    from leakaudit._util.decoding import TypeMismatch

T = TypeVar("T")

# Maximum number of times a file is parsed to find a line, and of characters in all of them. Most
# keys are found at once; for a word in every line of a long file it would take minutes, and a
# message without a line is good enough.
TRIES = 200
EXAMINED = 1 << 22
LARGEST = 1 << 20  # characters of a file, a choice: reading as many brackets takes 1.5 s
LONGEST = 4 * LARGEST  # bytes of a file: a character has at most four


class InvalidValue(LeakauditError):
    """A value of the right type that is nevertheless invalid.

    Args:
        where: What the keys belong to, such as ``check ring``; may be empty.
        at: Keys that lead to it, within the table from which a value is built.
    """

    def __init__(self, where: str, says: str, *at: str) -> None:
        super().__init__(_joined(where, ".".join(at), says))
        self.at = at


@dataclass(frozen=True)
class ConfigTable:
    """A table of a configuration, and its location."""

    values: Mapping[str, Any]
    file: str = ""  # name of the file in messages, such as `scenario run.toml`; may be empty
    name: str = ""  # beginning of messages about keys of the table; may be empty
    # the whole file, in which lines are searched; empty if the values are not from a file
    text: str = ""
    # keys, and indices in lists of tables, from the top of the file to the table
    path: tuple[str | int, ...] = ()

    def named(self, name: str) -> ConfigTable:
        """Return the same table with its own name."""
        return replace(self, name=_joined(self.file, name))

    def only(self, *keys: str) -> ConfigTable:
        """Return the table restricted to some of its keys."""
        return replace(self, values={k: v for k, v in self.values.items() if k in keys})

    def without(self, *keys: str) -> ConfigTable:
        """Return the table without some of its keys."""
        return replace(self, values={k: v for k, v in self.values.items() if k not in keys})

    def table(self, *keys: str) -> ConfigTable:
        """Return the table at nested keys, from the outermost to the innermost."""
        values = self.values
        for depth, key in enumerate(keys, 1):
            values = values.get(key, {})
            if not isinstance(values, Mapping):
                place = ".".join(keys[:depth])
                raise self.error(f"expected a table [{place}], got {brief(values)}", *keys[:depth])
        return replace(self, values=values, path=(*self.path, *keys))

    def tables(self, key: str) -> list[ConfigTable]:
        """Return the tables ``[[key]]``."""
        found = self.values.get(key, [])
        if not isinstance(found, list):
            raise self.error(f"{key}: expected tables [[{key}]], got {brief(found)}", key)
        made = []
        for place, values in enumerate(found):
            if not isinstance(values, Mapping):
                raise self.error(f"{key}: expected a table, got {brief(values)}", key)
            made.append(replace(self, values=values, path=(*self.path, key, place)))
        return made

    def known(self, keys: Sequence[str]) -> None:
        """Reject unknown keys."""
        for key in self.values:
            if key not in keys:
                raise self.error(f"unknown key {key!r}{suggest(key, keys)}", key)

    def decode(self, form: type[Struct], kind: Callable[..., T]) -> T:
        """Convert the table to a value.

        Args:
            kind: Receives the given values by key; the form itself, or a class of this package.
        """
        from msgspec import structs

        fields = {field.encode_name: field for field in structs.fields(form)}
        self.known(list(fields))
        given = {key: self._value(key, fields[key].type) for key in self.values}
        missing = [name for name, field in fields.items() if field.required and name not in given]
        if missing:
            raise self.error(f"expected the keys {', '.join(missing)}")
        try:
            return kind(**given)
        except InvalidValue as error:
            raise LeakauditError(_joined(self.file, f"{error}{self.line(*error.at)}")) from None
        except LeakauditError as error:
            raise LeakauditError(_joined(self.file, str(error))) from None

    def error(self, says: str, *at: str | int) -> LeakauditError:
        """Return an error about keys and indices within the table; none for the table itself."""
        return LeakauditError(_joined(self.name, f"{says}{self.line(*at)}"))

    def line(self, *at: str | int) -> str:
        """Return the line of a location for the end of a message: `` (at line 3)``, or empty."""
        line = line_of(self.text, (*self.path, *at))
        if line is None:
            return ""
        return f" (at line {line})"

    def _value(self, key: str, kind: Any) -> Any:
        """Return one value as its type: lists become tuples, integers floats if needed."""
        from leakaudit._util.decoding import first

        value = self.values[key]
        try:
            return typed(value, kind)
        except ValueError as error:
            found = first(value, kind)
            if found is None:
                raise self.error(f"{key}: {error}", key) from None
            found = replace(found, path=(key, *found.path))
            at = found.path
            if found.fault == "unknown":
                at = (*at, str(found.value))
            raise self.error(_sentence(found), *at) from None


def read(path: Path, name: str = "") -> ConfigTable:
    """Read a TOML file."""
    name = name or str(path)
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise ValueError(f"expected at most {LONGEST} bytes, got more")
        text = content.decode()
        return ConfigTable(parsed(text), name, name, text)
    except OSError as error:
        raise LeakauditError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise LeakauditError(
            f"{name}: expected a TOML file of UTF-8 text, got other bytes at {error.start}"
        ) from None
    except ValueError as error:
        raise LeakauditError(f"{name}: not valid TOML: {error}") from None


def read_if_any(path: Path) -> ConfigTable:
    """Read a TOML file of a folder; an empty table if it does not exist."""
    if not path.is_file():
        return ConfigTable({}, path.name, path.name)
    return read(path, path.name)


def parsed(text: str) -> dict[str, Any]:
    """Parse TOML; raises ValueError if it is not TOML, is too long or nests too deeply."""
    if len(text) > LARGEST:
        raise ValueError(f"expected at most {LARGEST} characters, got {len(text)}")
    return _kept(text)


# Several readers of one configuration follow each other; `line_of` parses many beginnings of it.
@lru_cache(maxsize=1)
def _kept(text: str) -> dict[str, Any]:
    return _parsed(text)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables nest too deeply") from None


def typed(value: object, kind: Any) -> Any:
    """Convert a TOML value to a type."""
    import msgspec

    try:
        return msgspec.convert(value, kind, builtin_types=(date,))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def check(values: Mapping[str, object], form: type[Struct]) -> None:
    """Check the types of fields that were set in Python."""
    from leakaudit._util.decoding import first

    try:
        typed(values, form)
    except ValueError:
        # msgspec rejects subclasses, such as a str that is a member of an enumeration; accept them.
        found = first(values, form)
        if found is not None:
            raise LeakauditError(_sentence(found)) from None


def written(values: Mapping[str, object]) -> str:
    """Write values as TOML, which cannot represent None."""
    import tomli_w

    try:
        return tomli_w.dumps(values)
    except TypeError as error:
        raise LeakauditError(f"cannot be written as TOML: {error}") from None


def inline(value: object) -> str:
    """Write one value as TOML on a single line, the text after ``key =``; tomli-w does not."""
    if isinstance(value, Mapping):
        entries = [f"{_key(key)} = {inline(held)}" for key, held in value.items()]
        if not entries:
            return "{}"
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    return written({"x": value}).removeprefix("x = ").rstrip("\n")


def _joined(*parts: str) -> str:
    return ": ".join(filter(None, parts))


def _key(key: str) -> str:
    return written({key: 0}).removesuffix(" = 0\n")


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line, from 1, on which a key or a table begins; None if it is not found.

    tomllib returns values without their lines, so the file is parsed up to each line that contains
    the name of the key: the first part with something at that place ends with the key's value.
    """
    names = [step for step in path if isinstance(step, str)]
    if not text or not names:
        return None
    lines = text.split("\n")
    word = re.compile(rf"(?<!\w){re.escape(names[-1])}(?!\w)")
    starts = [place for place, line in enumerate(lines) if word.search(line)]
    tries = 0
    examined = 0
    for start in starts:
        for stop in range(start + 1, len(lines) + 1):
            beginning = "\n".join(lines[:stop])
            tries += 1
            examined += len(beginning)
            if tries > TRIES or examined > EXAMINED:
                return None
            try:
                values = _parsed(beginning)
            except ValueError:
                continue  # the value continues on the next line
            if _holds(values, path):
                return start + 1
            break
    return None


def _holds(values: Any, path: Sequence[str | int]) -> bool:
    try:
        for step in path:
            values = values[step]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _sentence(found: TypeMismatch) -> str:
    from leakaudit._util.decoding import dotted, words

    place = dotted(found.path)
    if found.fault == "key":
        return f"a key of {place}: expected text, got {brief(found.value)}"
    if found.fault == "unknown":
        return f"{place}.{found.value}: unknown key{suggest(str(found.value), found.known)}"
    expected = words(found.kinds, toml=True)
    if found.fault == "missing":
        return f"{place}.{found.value}: is missing; expected {expected}"
    return f"{place}: expected {expected}, got {brief(found.value)}"
