"""Tables in LaTeX (booktabs) that compile with pdfLaTeX, whatever names they contain."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from leakaudit.results.wording import clean

LONG = 40  # rows from which a table may break across pages; about what fits on one page
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "—": "---",
    "’": "'",
    "…": r"\ldots{}",
    "×": r"\ensuremath{\times}",
    "≥": r"\ensuremath{\geq}",
    "≤": r"\ensuremath{\leq}",
    "∞": r"\ensuremath{\infty}",
    "−": r"\ensuremath{-}",
}
_SPECIAL['"'] = "''"  # \textquotedbl needs another font encoding
_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING CEDILLA}": "c",
    "\N{COMBINING MACRON}": "=",
}
_GREEK = {  # letters that LaTeX names differently, or not at all
    "omicron": "o",
    "final sigma": r"\varsigma",
    "lamda": r"\lambda",
    "epsilon": r"\varepsilon",
}
_CAPITALS = ("Gamma", "Delta", "Theta", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega")


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        heading: Its heading, as LaTeX.
        right: Whether its cells are aligned to the right, as numbers are.
    """

    heading: str
    right: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], caption: str, label: str
) -> str:
    """Return a table for a document that uses booktabs, and longtable if the table is long.

    Args:
        columns: The columns.
        rows: One cell per column in each row, as LaTeX.
        caption: The caption, as LaTeX.
        label: The label, of ASCII letters, digits, hyphens and colons.

    Returns:
        The environment, below a comment that names the packages.
    """
    form = "".join("r" if column.right else "l" for column in columns)
    heading = _line([column.heading for column in columns])
    body = [_line(row) for row in rows]
    if len(rows) > LONG:
        lines = [
            r"% needs \usepackage{booktabs} and \usepackage{longtable}",
            r"{\footnotesize",
            rf"\begin{{longtable}}{{@{{}}{form}@{{}}}}",
            rf"\caption{{{caption}}}\label{{{label}}}\\",
            r"\toprule",
            heading,
            r"\midrule",
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *body,
            r"\end{longtable}}",
        ]
    else:
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\footnotesize",
            rf"\caption{{{caption}}}\label{{{label}}}",
            rf"\begin{{tabular}}{{@{{}}{form}@{{}}}}",
            r"\toprule",
            heading,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    return "".join(f"{line}\n" for line in lines)


def escape(text: object) -> str:
    """Return text as LaTeX in ASCII.

    Args:
        text: Any value.

    Returns:
        One line in which no character acts as a command. Greek letters become mathematics, accents
        become commands, and other characters outside ASCII a question mark.
    """
    parts = []
    for character in unicodedata.normalize("NFC", clean(text)):
        parts.append(_escaped(character))
    # A row that begins with a bracket would be read as the argument of the line break before it.
    line = "".join(parts)
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def _escaped(character: str) -> str:
    """Return one character as LaTeX."""
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii():
        return character
    greek = _greek(character)
    if greek:
        return rf"\ensuremath{{{greek}}}"
    plain = unicodedata.normalize("NFKD", character)
    if plain.isascii():
        return "".join(_SPECIAL.get(one, one) for one in plain)
    base, mark = plain[0], plain[1:]
    if base.isascii() and base.isalpha() and mark in _ACCENTS:
        letter = {"i": r"\i ", "j": r"\j "}.get(base, base)
        return rf"\{_ACCENTS[mark]}{{{letter}}}"
    return "?"


def _greek(character: str) -> str:
    """Return the command of a Greek letter, "" for any other character."""
    name = unicodedata.name(character, "").lower()
    small = name.removeprefix("greek small letter ")
    if small != name and " with " not in small:
        return _GREEK.get(small, rf"\{small}") if small in _LETTERS else ""
    capital = name.removeprefix("greek capital letter ").capitalize()
    if capital in _CAPITALS and name.startswith("greek capital letter "):
        return rf"\{capital}"
    return ""


_LETTERS = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lamda", "mu", "nu", "xi", "omicron", "pi", "rho", "final sigma", "sigma", "tau"),
    *("upsilon", "phi", "chi", "psi", "omega"),
)


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
