"""Words: the right form of a noun, and the capital letter of a sentence."""

from collections.abc import Sequence

LISTED = 4  # most nodes that are listed one by one; a choice


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return f"{text[:1].upper()}{text[1:]}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, such as ``1 node`` or ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(nodes: Sequence[int]) -> str:
    """Return sorted nodes with their noun: ``node 3``, ``nodes 0 to 3`` or ``nodes 0, 2``."""
    plural = "s" * (len(nodes) > 1)
    return f"node{plural} {listed(nodes)}"


def listed(nodes: Sequence[int]) -> str:
    """Return sorted nodes without a noun, such as ``3``, ``0 to 3`` or ``0, 2``."""
    first, last = nodes[0], nodes[-1]
    if len(nodes) > 2 and last - first + 1 == len(nodes):
        return f"{first} to {last}"
    if len(nodes) <= LISTED:
        return ", ".join(map(str, nodes))
    return f"{first}, {nodes[1]} and {len(nodes) - 2} others"
