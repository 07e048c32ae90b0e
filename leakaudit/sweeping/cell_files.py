"""The files of a sweep's folder as types: its plan and the result of each cell.

`leakaudit.sweeping.store` reads and writes these; the record of the whole sweep is built from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from leakaudit.results.model import (
    CertificateEntry,
    Extended,
    Free,
    LeakSummary,
    Number,
    Scores,
)

FORMAT: Literal["leakaudit.sweep"] = "leakaudit.sweep"
VERSION: Literal[1] = 1

Status: TypeAlias = Literal["died", "done", "failed"]
# How a cell ended.
DONE: Literal["done"] = "done"  # it has a result
FAILED: Literal["failed"] = "failed"  # it raised
DIED: Literal["died"] = "died"  # its process ended


class _Stored(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a file in which every field is defined."""


class PlanFile(_Stored, frozen=True, kw_only=True):
    """The plan of a folder.

    Attributes:
        format: Name of this format.
        version: Version of this format.
        plan: The plan, as `leakaudit.sweeping.tables` reads and writes it.
        versions: Versions of the packages that results depend on.
    """

    format: Literal["leakaudit.sweep"]
    version: Literal[1]
    plan: Mapping[str, Free]
    versions: dict[str, str | None]


class NoiseConfig(_Stored, frozen=True, kw_only=True):
    """How the epsilon of a cell is set; the fields are those of an audit's plan.

    Attributes:
        epsilon: Privacy parameter.
        noise: What this epsilon refers to, the view bound or the claim.
        constant: The constant of the victim that sets it.
        delta: Delta of the epsilon.
        sensitivity: Largest change of a gradient if one record is exchanged.
        smoothness: Smoothness of a node's loss. Omitted if it is not set, so that cells of earlier
            sweeps are found again.
        adversaries: The noise is set for the worst of these.
    """

    epsilon: Extended
    noise: str
    constant: str
    delta: Number | None
    sensitivity: Number | None
    smoothness: Number | UnsetType = UNSET
    adversaries: tuple[str, ...]


class CellConfig(_Stored, frozen=True, kw_only=True):
    """Everything that the result of a cell depends on, besides the versions of packages.

    Attributes:
        scenario: The scenario that is recorded.
        adversary: The adversary.
        attack: Name of the attack.
        settings: Hyper-parameters of the attack.
        epsilon: How the noise is set, None for the scenario's own constants.
        nodes: Nodes to attack, empty for all.
        gradients: Largest number of gradients of a leak.
        device: Device on which the cell is computed.
    """

    scenario: Mapping[str, Free]
    adversary: str
    attack: str
    settings: Mapping[str, Free]
    epsilon: NoiseConfig | None
    nodes: tuple[int, ...]
    gradients: int
    device: str


class CellFinding(_Stored, frozen=True, kw_only=True):
    """One reconstruction of a cell: a finding without private fields and run-dependent ones.

    Attributes:
        node: The node that owns the inputs.
        adversary: The adversary.
        attack: Name of the attack.
        leak: The leak that was attacked.
        certificate: How certain the attack is.
        certified: Number of inputs that are certified exact.
        batch: Number of inputs.
        scores: Quality of the reconstruction.
        residual: How well the reconstruction explains the leak; None if the residual is not finite.
        note: Remarks.
    """

    node: int
    adversary: str
    attack: str
    leak: LeakSummary
    certificate: CertificateEntry
    certified: int
    batch: int | None
    scores: Scores | None
    residual: Number | None
    note: str


class CellResult(_Stored, frozen=True, kw_only=True):
    """The result of one cell, or why it has none.

    Attributes:
        config: Everything that it depends on.
        status: How the cell ended.
        says: Why it has no result, empty if it has one.
        constants: Constants of the victim that set the epsilon.
        records: Number of records of all attacked nodes.
        findings: One for each node with a reconstruction.
        refused: Scores of the nodes without a reconstruction; all their records are missed. Files
            without this entry were written by an earlier version, and their cells are run again.
        reasons: Why there is no reconstruction, by node.
        sha256: Digest of the cell's name and all other entries, which tells whether a file was
            changed or renamed.
    """

    config: CellConfig
    status: Status
    says: str
    constants: Mapping[str, Free]
    records: int
    findings: tuple[CellFinding, ...]
    refused: tuple[Scores, ...]
    reasons: dict[str, str]
    sha256: str = ""


class Timing(_Stored, frozen=True, kw_only=True):
    """The duration of one cell.

    Attributes:
        cell: Its key.
        seconds: Wall-clock time.
        cpu: Processor time in seconds.
        status: How it ended.
        worker: Number of its process.
    """

    cell: str
    seconds: float
    cpu: float
    status: str
    worker: int
