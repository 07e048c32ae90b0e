"""How a value is displayed in a notebook: a card in HTML, made by `reporting.rendering.cards`.

The basic types are at the bottom of the house, and what draws them is near its top. The import in
`Displayed` is the only one that leads upwards. It is executed when a notebook displays a value, so
that `import leakaudit` stays light, and pyproject.toml names it as an exception of each contract
that it touches. A registry that the cards fill would avoid the exception, but a notebook would
display nothing until something had imported the cards.
"""

from __future__ import annotations


class Displayed:
    """A value that notebooks display as a card, and everything else by its short `repr`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the card, which is the method's name in every notebook."""
        from leakaudit.reporting.rendering import cards

        return cards.html(self)
