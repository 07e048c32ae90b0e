"""Batch statistics of nodes: public tensors of the trace, or computed from running statistics."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeAlias

import torch
from torch import Tensor

from leakaudit.core.adversary import View
from leakaudit.protocols import running_statistics
from leakaudit.theory.relations import Knowledge, Vector, explain
from leakaudit.views.extraction.deduction import Deduction

# Names of the public tensors (c,): node, round of the gradient, layer, and which of both.
NAME = re.compile(r"statistics\.(\d{1,9})\.(\d{1,9})\.(.+)\.(mean|var)")
MIXED = (
    "the running statistics determine only a weighted sum of those of the batches of a round, "
    "which are not known one by one"
)
Statistics: TypeAlias = dict[str, tuple[Tensor, Tensor]]  # layer -> mean and variance (c,)


def disclosed(view: View, node: int, rounds: Collection[int]) -> dict[int, Statistics]:
    """Return those among the public tensors, by round; a layer counts only if both are known."""
    halves: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name in sorted(view.tensors):
        found = NAME.fullmatch(name)
        if found is None or not view.knows(name):
            continue
        owner, at, layer, which = found.groups()
        if int(owner) == node and int(at) in rounds:
            halves.setdefault((int(at), layer), {})[which] = view.public(name)
    known: dict[int, Statistics] = {}
    for (at, layer), both in halves.items():
        if len(both) == 2:
            known.setdefault(at, {})[layer] = (both["mean"], both["var"])
    return known


def computed(
    deduction: Deduction, knowledge: Knowledge, node: int, rounds: Collection[int]
) -> tuple[dict[int, Statistics], str]:
    """Return those that running statistics determine, by round, and what limits them, in words."""
    view = deduction.view
    known: dict[int, Statistics] = {}
    limit = ""
    for state in knowledge.declared.select("state", node, running_statistics.BATCH):
        vector = knowledge.declared.vectors[state.vector]
        if vector.round not in rounds:
            continue
        if vector.index is not None:  # of one of several steps
            limit = MIXED
            continue
        formula = explain(knowledge, state)
        if formula is None or not view.knows(running_statistics.START):
            continue
        value = torch.zeros((), dtype=torch.float64)
        for k, factor in formula.terms.items():
            value = value + float(factor) * deduction.fetch(formula.home[k]).double()
        began = deduction.fetch(Vector("public", running_statistics.START, None, 0))
        layers = running_statistics.of_layers(view.layout, view.columns, began, value)
        if layers:
            known[vector.round] = layers
    return known, limit
