"""The finished part of an attack run, so that an interrupted run can be resumed.

Each file has reconstructions that were settled together, and the key of its run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from leakaudit._util.files import write_tensors
from leakaudit._util.uncollected import read_json
from leakaudit._util.untrusted import safe_reader
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.reconstruction import Certificate, Reconstruction, check_stored
from leakaudit.core.trace import Json
from leakaudit.reporting.results import provenance

FOLDER = "unfinished"
FORMAT = "leakaudit.checkpoint"
VERSION = 1

# Fields of a reconstruction that are stored as JSON, beside its tensors and its certificate.
VALUES = ("node", "attack", "residual", "seconds", "note", "certified", "others", "rounds", "tried")


class _Entry(Struct, frozen=True, kw_only=True):
    node: int
    attack: str
    residual: float
    seconds: float
    note: str
    certified: int
    others: tuple[int, ...]
    certificate: str
    rounds: tuple[tuple[int, ...], ...] = ()
    evidence: tuple[tuple[str, int, str], ...] = ()
    tried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """The finished part of one run."""

    folder: Path
    key: str  # key of the run, see `key`

    @classmethod
    def begin(cls, output: Path, key: str, resume: bool) -> Checkpoint:
        """Continue with the files of an earlier run, or remove them."""
        made = cls(output / FOLDER, key)
        if resume:
            made.finished()
        else:
            made.clear()
        return made

    def save(self, found: Sequence[Reconstruction]) -> None:
        """Store reconstructions of different nodes in one file."""
        if not found:
            return
        tensors: dict[str, Tensor] = {}
        about = []
        for i, one in enumerate(found):
            tensors |= _tensors(one, i)
            values = {name: getattr(one, name) for name in VALUES}
            evidence = [(each.subject, each.origin, each.detail) for each in one.evidence]
            values |= {"certificate": one.certificate.name, "evidence": evidence}
            about.append(values)
        content = {
            "format": FORMAT,
            "version": VERSION,
            "key": self.key,
            "meta": json.dumps(about),
            "tensors": tensors,
        }
        write_tensors(self.folder / f"node{found[0].node}.pt", content)

    def finished(self) -> dict[int, Reconstruction]:
        """Return the stored reconstructions."""
        kept: dict[int, Reconstruction] = {}
        for path in sorted(self.folder.glob("node*.pt")):
            for one in self._read(path):
                kept[one.node] = one
        return kept

    def clear(self) -> None:
        """Remove the files of any run, and the folder if it is then empty."""
        for path in [*self.folder.glob("node*.pt"), *self.folder.glob(".node*.tmp")]:
            path.unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _read(self, path: Path) -> list[Reconstruction]:
        tree = safe_reader.read(path)
        if tree.get("format") != FORMAT or tree.get("version") != VERSION:
            raise LeakauditError(
                f"{path} is not a checkpoint of this version; start again without --resume"
            )
        if tree.get("key") != self.key:
            raise LeakauditError(
                f"{path} belongs to a run on another trace or with other settings; "
                "start again without --resume"
            )
        try:
            tensors = tree["tensors"]
            about = msgspec.convert(read_json(tree["meta"]), list[_Entry])
            return [_rebuilt(one, tensors, i) for i, one in enumerate(about)]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise LeakauditError(f"{path} is damaged; start again without --resume") from None


def key(about: Mapping[str, Json]) -> str:
    """Return a digest of all that reconstructions depend on, with package versions."""
    versions = provenance.decisive_versions()
    return provenance.digest({"run": dict(about), "versions": versions})


def _tensors(one: Reconstruction, i: int) -> dict[str, Tensor]:
    """Tensors of the i-th reconstruction, by the names that `_rebuilt` looks for."""
    given = {f"x{i}": one.x}
    if one.y is not None:
        given[f"y{i}"] = one.y
    if one.interval is not None:
        given[f"interval{i}"] = one.interval
    if one.tokens is not None:
        given[f"tokens{i}"] = one.tokens
    for place, others in one.choices.items():
        given[_choices(i, place)] = others
    return {name: tensor.detach().cpu().clone() for name, tensor in given.items()}


def _rebuilt(one: _Entry, tensors: Mapping[str, Tensor], i: int) -> Reconstruction:
    """The i-th reconstruction of a file; each tensor has its own memory."""
    x = tensors[f"x{i}"].clone()
    y = _copied(tensors.get(f"y{i}"))
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError("attacks compute in float32 or float64")
    if not 0 <= one.certified <= len(x):
        raise ValueError("as many inputs are certified as there are, at most")
    choices: dict[int, Tensor] = {}
    for place in range(len(x)):
        others = tensors.get(_choices(i, place))
        if others is not None:
            choices[place] = others.clone()
    interval = _copied(tensors.get(f"interval{i}"))
    tokens = _copied(tensors.get(f"tokens{i}"))
    check_stored(x, y, interval, choices, tokens)
    return Reconstruction(
        x=x,
        y=y,
        certificate=Certificate[one.certificate],
        interval=interval,
        choices=choices,
        tokens=tokens,
        evidence=tuple(Evidence(about, Origin(k), detail) for about, k, detail in one.evidence),
        **{name: getattr(one, name) for name in VALUES},
    )


def _choices(i: int, place: int) -> str:
    return f"choices{i}_{place}"


def _copied(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.clone()
