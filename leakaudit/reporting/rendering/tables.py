"""Text tables that fit the terminal, and that have one line per row elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from leakaudit.core.errors import COMMAND, one_line

GAP = "  "
INDENT = 4  # of text below a row
NARROWEST = 24  # columns below which text is not wrapped in its column but written below the row


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    heading: str
    right: bool = False  # whether its cells are aligned to the right, as numbers are
    # whether its cells are sentences, which may be wrapped or written below the row
    text: bool = False
    spare: bool = False  # whether the column may be omitted if the terminal is too narrow


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int | None = None
) -> Text:
    """Return a table.

    If the table is wider than the terminal, then these are tried in order: wrap the only column of
    text at words, write all columns of text below their rows, and omit spare columns, the last one
    first.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    sizes = [_size(column, k, cells) for k, column in enumerate(columns)]
    beside, below = _arranged(columns, sizes, width)
    lines = [_heading(columns, sizes, beside)]
    lines.append(Text("─" * _total(sizes, beside), style="dim"))
    for row in cells:
        lines += _row(row, columns, sizes, beside)
        for k in below:
            lines += _below(columns[k].heading, row[k], width or 0)
    return Text("\n").join(lines)


def _arranged(
    columns: Sequence[Column], sizes: list[int], width: int | None
) -> tuple[list[int], list[int]]:
    """Choose the columns that are beside each other, and those whose text is below the rows.

    A column whose text is wrapped gets its new width in `sizes`.
    """
    beside = list(range(len(columns)))
    if width is None or _total(sizes, beside) <= width:
        return beside, []
    texts = [k for k in beside if columns[k].text]
    rest = [k for k in beside if k not in texts]
    room = width - _total(sizes, rest) - len(GAP)
    if len(texts) == 1 and room >= NARROWEST:
        sizes[texts[0]] = room
        return beside, []
    for k in reversed(rest):
        if columns[k].spare and _total(sizes, rest) > width:
            rest.remove(k)
    return rest, texts


def indented(text: Text, width: int | None = None, by: int = INDENT) -> RenderableType:
    """Return a paragraph below a heading; `console.printed` wraps it if there is a width."""
    if width is None:
        return Text(" " * by).append_text(text)
    return Padding(text, (0, 0, 0, by), expand=False)


def _cell(cell: str | Text) -> Text:
    if isinstance(cell, Text):
        return cell
    if cell.isprintable() and not COMMAND.search(cell):
        return Text(cell)
    return Text(one_line(cell))


def _size(column: Column, k: int, cells: Sequence[Sequence[Text]]) -> int:
    return max([cell_len(column.heading), *(row[k].cell_len for row in cells)])


def _total(sizes: Sequence[int], beside: Sequence[int]) -> int:
    return sum(sizes[k] for k in beside) + len(GAP) * (len(beside) - 1)


def _heading(columns: Sequence[Column], sizes: Sequence[int], beside: Sequence[int]) -> Text:
    cells = {k: Text(columns[k].heading, style="bold") for k in beside}
    return _line(cells, columns, sizes, beside)


def _row(
    row: Sequence[Text], columns: Sequence[Column], sizes: Sequence[int], beside: Sequence[int]
) -> list[Text]:
    """Return the lines of a row; there are several if its text is wrapped."""
    parts = {}
    for k in beside:
        parts[k] = [row[k]]
        if row[k].cell_len > sizes[k]:
            wrapped = textwrap.wrap(row[k].plain, sizes[k])
            parts[k] = [Text(part, style=row[k].style) for part in wrapped]
    lines = []
    for n in range(max(len(part) for part in parts.values())):
        cells = {k: part[n] for k, part in parts.items() if n < len(part)}
        lines.append(_line(cells, columns, sizes, beside))
    return lines


def _line(
    cells: dict[int, Text], columns: Sequence[Column], sizes: Sequence[int], beside: Sequence[int]
) -> Text:
    padded = []
    for k in beside:
        cell = cells.get(k, Text()).copy()
        missing = sizes[k] - cell.cell_len
        if columns[k].right:
            cell.pad_left(missing)
        else:
            cell.pad_right(missing)
        padded.append(cell)
    line = Text(GAP).join(padded)
    line.rstrip()
    return line


def _below(heading: str, cell: Text, width: int) -> list[Text]:
    if cell.plain.strip() in ("", "-"):
        return []
    named = f"{heading}: {cell.plain}" if heading else cell.plain
    blanks = " " * INDENT
    wrapped = textwrap.wrap(
        named, width, initial_indent=blanks, subsequent_indent=blanks + "  ", break_on_hyphens=False
    )
    return [Text(line, style=cell.style) for line in wrapped]
