"""What an attack run has finished, kept in its output folder until all of it is there, so that a run that was cut short can go on.

Each file holds reconstructions that were settled together, appears whole or not at all, and bears the key of its run: a digest of the
trace and of everything that the reconstructions depend on. A file that a stranger left is read as safely as a trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.results import provenance
from leakaudit.trace import Json
from leakaudit.traces._storage import safe_reader

FOLDER, FORMAT, VERSION = "unfinished", "leakaudit.checkpoint", 1
VALUES = (
    "node",
    "attack",
    "residual",
    "seconds",
    "note",
    "certified",
)  # of a reconstruction, beside tensors and certificate
DEPEND = (
    "leakaudit",
    "torch",
    "numpy",
    "scipy",
)  # packages whose version a reconstruction depends on


@dataclass(frozen=True)
class Checkpoint:
    """The finished part of one run. folder: where its files stand; key: of the run."""

    folder: Path
    key: str

    @classmethod
    def begin(cls, output: Path, key: str, resume: bool) -> Checkpoint:
        """Take up what stands in `output`, or remove it where the run starts anew.

        Raises LeakauditError where it belongs to another run or cannot be read.
        """
        made = cls(output / FOLDER, key)
        if resume:
            made.finished()
        else:
            made.clear()
        return made

    def save(self, found: Sequence[Reconstruction]) -> None:
        """Keep reconstructions of different nodes in one file; raises LeakauditError where it cannot be written."""
        if not found:
            return
        tensors = {f"x{i}": f.x.detach().cpu().clone() for i, f in enumerate(found)}
        tensors |= {
            f"y{i}": f.y.detach().cpu().clone() for i, f in enumerate(found) if f.y is not None
        }
        tensors |= {
            f"interval{i}": f.interval.detach().cpu().clone()
            for i, f in enumerate(found)
            if f.interval is not None
        }
        tensors |= {
            f"choices{i}_{k}": some.detach().cpu().clone()
            for i, f in enumerate(found)
            for k, some in f.choices.items()
        }
        about = [
            {k: getattr(f, k) for k in VALUES} | {"certificate": f.certificate.name} for f in found
        ]
        with replacing(self.folder / f"node{found[0].node}.pt") as file:
            torch.save(
                {
                    "format": FORMAT,
                    "version": VERSION,
                    "key": self.key,
                    "meta": json.dumps(about),
                    "tensors": tensors,
                },
                file,
            )

    def finished(self) -> dict[int, Reconstruction]:
        """Return what was kept, by node; raises as `begin` does."""
        return {
            f.node: f for path in sorted(self.folder.glob("node*.pt")) for f in self._read(path)
        }

    def clear(self) -> None:
        """Remove the files of this or another run, and the folder where nothing else is in it."""
        for path in [*self.folder.glob("node*.pt"), *self.folder.glob(".node*.tmp")]:
            path.unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _read(self, path: Path) -> list[Reconstruction]:
        tree = safe_reader.read(path)
        if tree.get("format") != FORMAT or tree.get("version") != VERSION:
            raise LeakauditError(
                f"{path} is no checkpoint of this version; start anew without --resume"
            )
        if tree.get("key") != self.key:
            raise LeakauditError(
                f"{path} belongs to a run on another trace or with other settings; start anew without --resume"
            )
        try:
            return [
                _rebuilt(one, tree["tensors"], i) for i, one in enumerate(json.loads(tree["meta"]))
            ]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise LeakauditError(f"{path} is damaged; start anew without --resume") from None


def key(about: Mapping[str, Json]) -> str:
    """Digest of what a run's reconstructions depend on, versions of the packages included."""
    versions = provenance.versions()
    return provenance.digest(
        {"run": dict(about), "versions": {name: versions[name] for name in DEPEND}}
    )


def _rebuilt(one: Mapping[str, Any], tensors: Mapping[str, Tensor], i: int) -> Reconstruction:
    y = tensors.get(f"y{i}")
    x, y = tensors[f"x{i}"].clone(), None if y is None else y.clone()
    interval = tensors.get(f"interval{i}")
    interval = None if interval is None else interval.clone()
    start = f"choices{i}_"
    choices = {
        int(name.removeprefix(start)): some.clone()
        for name, some in tensors.items()
        if name.startswith(start)
    }
    rest = {k: one[k] for k in VALUES}
    return Reconstruction(
        x=x,
        y=y,
        certificate=Certificate[one["certificate"]],
        interval=interval,
        choices=choices,
        **rest,
    )
