"""Tables in LaTeX (booktabs) that compile with pdfLaTeX, whatever names they contain."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from leakaudit.reporting.findings.wording import clean

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
_LETTERS = "αβγδεζηθικλμνξοπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"
_COMMANDS = (
    *(r"\alpha", r"\beta", r"\gamma", r"\delta", r"\varepsilon", r"\zeta", r"\eta", r"\theta"),
    *(r"\iota", r"\kappa", r"\lambda", r"\mu", r"\nu", r"\xi", "o", r"\pi", r"\rho"),
    *(r"\varsigma", r"\sigma", r"\tau", r"\upsilon", r"\phi", r"\chi", r"\psi", r"\omega"),
    *(r"\Gamma", r"\Delta", r"\Theta", r"\Lambda", r"\Xi", r"\Pi", r"\Sigma", r"\Upsilon"),
    *(r"\Phi", r"\Psi", r"\Omega"),
)
_GREEK = dict(zip(_LETTERS, _COMMANDS, strict=True))


def table(
    headings: Sequence[str], form: str, rows: Sequence[Sequence[str]], caption: str, label: str
) -> str:
    """Return a table for a document that uses booktabs, and longtable if it is long.

    All texts are LaTeX; `form` has an ``l`` or ``r`` for the alignment of each column.
    """
    heading = _line(headings)
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
    """Return text as LaTeX in ASCII."""
    parts = []
    for character in unicodedata.normalize("NFC", clean(text)):
        parts.append(_escaped(character))
    # A row that begins with a bracket would be read as the argument of the line break before it.
    line = "".join(parts)
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def _escaped(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character.isascii():
        return character
    if character in _GREEK:
        return rf"\ensuremath{{{_GREEK[character]}}}"
    plain = unicodedata.normalize("NFKD", character)
    if plain.isascii():
        return "".join(_SPECIAL.get(one, one) for one in plain)
    base, mark = plain[0], plain[1:]
    if base.isascii() and base.isalpha() and mark in _ACCENTS:
        letter = {"i": r"\i ", "j": r"\j "}.get(base, base)
        return rf"\{_ACCENTS[mark]}{{{letter}}}"
    return "?"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
