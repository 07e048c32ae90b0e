"""What a sweep's folder holds of its plan and of each cell, as types.

`leakaudit.sweeping.store` reads and writes these; the record of the whole sweep is made from them.
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
    """A part of a file whose fields are all known."""


class PlanFile(_Stored, frozen=True, kw_only=True):
    """The plan of a folder.

    Attributes:
        format: Name of this format.
        version: Of this format.
        plan: The plan, as `leakaudit.sweeping.tables` reads and writes it.
        versions: Of the packages that results depend on.
    """

    format: Literal["leakaudit.sweep"]
    version: Literal[1]
    plan: Mapping[str, Free]
    versions: dict[str, str | None]


class NoiseConfig(_Stored, frozen=True, kw_only=True):
    """How the epsilon of a cell is set; the fields are those of an audit's plan.

    Attributes:
        epsilon: Privacy parameter.
        noise: What has this epsilon, the exact view or the claim.
        constant: Of the victim, by which it is set.
        delta: Of the epsilon.
        sensitivity: How far a record moves a gradient.
        smoothness: Of a node's loss. Left out if it is not set, so that cells of earlier sweeps
            are found again.
        adversaries: For the worst of whom the noise is set.
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
        scenario: What is recorded.
        adversary: Who attacks.
        attack: What attacks.
        settings: Hyper-parameters of the attack.
        epsilon: How the noise is set, None for the scenario's own constants.
        nodes: Nodes to attack, empty for all.
        gradients: Most gradients of a leak.
        device: Where the cell is computed.
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
    """One reconstruction of a cell: a finding without what differs from run to run or is private.

    Attributes:
        node: Whose inputs these are.
        adversary: Who hears.
        attack: Name of the attack.
        leak: What was attacked.
        certificate: How sure the attack is.
        certified: Number of inputs that are certified exact.
        batch: Number of inputs.
        scores: How near it comes to the truth.
        residual: How well the reconstruction explains the leak; None if that is not finite.
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
        config: What it depends on.
        status: How the cell ended.
        says: Why it has no result, empty if it has one.
        constants: Of the victim, by which the epsilon was set.
        records: Number of records of all nodes that were attacked.
        findings: One for each node from which something came back.
        refused: Scores of the nodes from which nothing came back; all their records are missed. A
            file without this entry was counted by an earlier rule, and its cell is run again.
        reasons: Why nothing came back, by node.
    """

    config: CellConfig
    status: Status
    says: str
    constants: Mapping[str, Free]
    records: int
    findings: tuple[CellFinding, ...]
    refused: tuple[Scores, ...]
    reasons: dict[str, str]


class Timing(_Stored, frozen=True, kw_only=True):
    """How long one cell took.

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
