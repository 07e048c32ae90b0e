"""The files of a sweep's folder as types: the result of each cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from leakaudit.reporting.results.model import (
    CertificateEntry,
    Extended,
    Free,
    LeakSummary,
    Number,
    Scores,
)

Status: TypeAlias = Literal["died", "done", "failed"]
# How a cell ended.
DONE: Literal["done"] = "done"  # it has a result
FAILED: Literal["failed"] = "failed"  # it raised
DIED: Literal["died"] = "died"  # its process ended


class _Stored(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a file in which every field is defined."""


class NoiseConfig(_Stored, frozen=True, kw_only=True):
    """How the epsilon of a cell is set; the fields are those of an audit's plan."""

    epsilon: Extended  # privacy parameter
    noise: str  # what this epsilon refers to, the view bound or the claim
    constant: str  # the constant of the victim that sets it
    delta: Number | None
    sensitivity: Number | None  # largest change of a gradient if one record is exchanged
    # smoothness of a node's loss. Omitted if it is not set, so that cells of earlier sweeps are
    # found again.
    smoothness: Number | UnsetType = UNSET
    adversaries: tuple[str, ...]  # the noise is set for the worst of these


class CellConfig(_Stored, frozen=True, kw_only=True):
    """Everything that the result of a cell depends on, besides the versions of packages."""

    scenario: Mapping[str, Free]
    adversary: str
    attack: str
    settings: Mapping[str, Free]  # hyper-parameters of the attack
    epsilon: NoiseConfig | None  # how the noise is set, None for the scenario's own constants
    nodes: tuple[int, ...]  # nodes to attack, empty for all
    gradients: int  # largest number of gradients of a leak
    # whether the worst view is bounded; omitted if it is not, so that cells of earlier sweeps are
    # found again
    bounds: bool | UnsetType = UNSET
    device: str  # device on which the cell is computed


class CellFinding(_Stored, frozen=True, kw_only=True):
    """One reconstruction of a cell: a finding without private fields and run-dependent ones."""

    node: int  # the node that owns the inputs
    adversary: str
    attack: str
    leak: LeakSummary
    certificate: CertificateEntry  # how certain the attack is
    certified: int  # number of inputs that are certified exact
    batch: int | None  # number of inputs
    scores: Scores | None  # quality of the reconstruction
    # how well the reconstruction explains the leak; None if the residual is not finite
    residual: Number | None
    note: str


class CellBound(_Stored, frozen=True, kw_only=True):
    """The bound of the worst view of a cell, over its nodes and adversaries."""

    epsilon: Extended  # of a record at `delta`; None if a view has no bound
    claimed: Extended  # what the protocol claims for its constants, None if it claims nothing
    delta: Number
    holds: str  # a `leakaudit.core.verdict.Holds`
    why: str  # why there is no bound, or what contradicts its assumptions; may be empty


class CellResult(_Stored, frozen=True, kw_only=True):
    """The result of one cell, or why it has none."""

    config: CellConfig  # everything that it depends on
    status: Status  # how the cell ended
    says: str  # why it has no result, empty if it has one
    constants: Mapping[str, Free]  # constants of the victim that set the epsilon
    records: int  # number of records of all attacked nodes
    findings: tuple[CellFinding, ...]  # one for each node with a reconstruction
    # scores of the nodes without a reconstruction; all their records are missed. Files without this
    # entry were written by an earlier version, and their cells are run again.
    refused: tuple[Scores, ...]
    reasons: dict[str, str]  # why there is no reconstruction, by node
    # values after rounds 0, 1, ... by quantity, None if a round has none; absent if the scenario
    # keeps no curves, and in the files of earlier versions
    curves: Mapping[str, tuple[Extended, ...]] | UnsetType = UNSET
    bound: CellBound | UnsetType = UNSET  # absent unless the plan asks for bounds
    # digest of the cell's name and all other entries, which tells whether a file was changed or
    # renamed
    sha256: str = ""
