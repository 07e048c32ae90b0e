"""Batch statistics that nodes disclosed beside their messages, as public tensors of the trace."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor

from leakaudit.core.adversary import View

# Names of the public tensors (c,): node, round of the gradient, layer, and which of both.
NAME = re.compile(r"statistics\.(\d{1,9})\.(\d{1,9})\.(.+)\.(mean|var)")


def of(view: View, node: int, rounds: Iterable[int]) -> dict[int, dict[str, tuple[Tensor, Tensor]]]:
    """Return the known statistics of a node's batches, by round and layer: mean and variance (c,).

    A layer counts only if both are known.
    """
    wanted = set(rounds)
    halves: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name in sorted(view.tensors):
        found = NAME.fullmatch(name)
        if found is None or not view.knows(name):
            continue
        owner, at, layer, which = found.groups()
        if int(owner) == node and int(at) in wanted:
            halves.setdefault((int(at), layer), {})[which] = view.public(name)
    known: dict[int, dict[str, tuple[Tensor, Tensor]]] = {}
    for (at, layer), both in halves.items():
        if len(both) == 2:
            known.setdefault(at, {})[layer] = (both["mean"], both["var"])
    return known
