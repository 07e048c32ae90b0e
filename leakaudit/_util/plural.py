"""Numbers with the right form of the noun behind them."""


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, such as ``1 node`` or ``3 nodes``.

    Args:
        number: How many there are.
        noun: The singular; an s makes the plural.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
