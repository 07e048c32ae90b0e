"""One cell of a gate: a program under test, an adversary and an attack, over all seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from leakaudit import registry
from leakaudit._util.seeds import generator
from leakaudit.adversary import Adversary
from leakaudit.errors import AttackError, LeakauditError
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.gate import measures
from leakaudit.gate.config import Check
from leakaudit.gate.runs import Recorded
from leakaudit.inversion import attacking
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.results.provenance import digest
from leakaudit.scoring.scoring import Score, score
from leakaudit.trace import Json, Truth


@dataclass(frozen=True)
class Worst:
    """The record that an attack got best, of a node or of a whole cell: what a reader is told leaked, from whom, to whom."""

    seed: int
    node: int
    psnr: float | None
    relative_error: float | None
    exact: bool
    labels: float | None
    kind: str
    first: int
    last: int
    formula: str


@dataclass
class Cell:
    """What was measured so far.

    samples: one number a seed under each measure. found: what was reconstructed of each seed and node, and that run's truth; planted:
    the same of planted records; leak: the first that was attacked. nodes: node -> what was got best of it, worst: of all.
    reasons: node -> why nothing of it is determined, or why the attack cannot use what is. tried: how many leaks were attacked.
    """

    check: Check
    who: str
    attack: str
    seeds: list[int] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)
    found: list[tuple[Reconstruction, Truth]] = field(default_factory=list)
    planted: list[tuple[Reconstruction, Truth]] = field(default_factory=list)
    leak: GradientLeak | None = None
    nodes: dict[int, Worst] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    worst: Worst | None = None
    tried: int = 0
    seconds: float = 0.0
    _ranks: dict[int | None, tuple[float, float]] = field(default_factory=dict)
    _got: dict[int, Score] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``check/adversary/attack``, in the words of the configuration."""
        return f"{self.check.name}/{self.who}/{self.attack}"

    @property
    def adversary(self) -> Adversary:
        """Who listens."""
        return Adversary.parse(self.who)

    @property
    def settings(self) -> dict[str, Json]:
        """Hyper-parameters that the configuration sets."""
        return dict(self.check.set.get(self.attack, {}))

    def digest(self) -> str:
        """sha256 of how is measured: attack with all its hyper-parameters, adversary, nodes, and the measures' version."""
        settings = self.settings
        if self.attack != "auto":
            settings = registry.values(
                registry.configure(registry.get("attacks", self.attack), settings)
            )
        nodes = None if self.check.nodes is None else list(self.check.nodes)
        about = {
            "attack": self.attack,
            "settings": settings,
            "adversary": str(self.adversary),
            "gradients": self.check.gradients,
        }
        return digest({**about, "nodes": nodes, "measures": measures.VERSION})

    def attack_one(self, run: Recorded, leak: GradientLeak) -> None:
        """Attack one node of a run, and keep what was found until `close`."""
        start = time.perf_counter()
        self.leak = self.leak or leak
        try:
            found = attacking.attack_one(
                leak, run.task, self.attack, generator(run.seed, leak.node), **self.settings
            )
        except AttackError as e:
            self.reasons[leak.node] = str(e)
            return
        self.tried += 1
        (self._got[leak.node],) = score(found, run.truth)
        self.found.append((found, run.truth))
        self._note(leak, self._got[leak.node], run.seed)
        self.seconds += time.perf_counter() - start

    def close(self, run: Recorded, nodes: Sequence[int]) -> None:
        """Turn what was found in a run into one number a measure."""
        columns = [measures.values(run.guess(n), self._got.get(n)) for n in nodes]
        for name in columns[0]:
            self.samples.setdefault(name, []).append(
                measures.sample(name, [v for c in columns for v in c[name]])
            )
        self.seeds.append(run.seed)
        self._got.clear()

    def _note(self, leak: GradientLeak, scored: Score, seed: int) -> None:
        """Keep the record that was got best: by PSNR where there is one, else by relative error; labels alone count less than any input."""
        errors = scored.relative_error or (None,)
        near = (
            scored.psnr if scored.psnr is not None else [None if e is None else -e for e in errors]
        )
        gains = [-math.inf if v is None else float(v) for v in near]
        at = gains.index(max(gains))
        rank = gains[at], scored.labels_found or 0.0
        psnr, error, exact = (
            None if (c := getattr(scored, m)) is None else c[at]
            for m in ("psnr", "relative_error", "exact")
        )
        span = int(leak.rounds.min()), int(leak.rounds.max())
        made = Worst(
            seed,
            leak.node,
            psnr,
            error,
            bool(exact),
            scored.labels_found,
            leak.kind,
            *span,
            leak.formula,
        )
        if leak.node not in self.nodes or rank > self._ranks[leak.node]:
            self._ranks[leak.node], self.nodes[leak.node] = rank, made
        if rank > self._ranks.get(None, (-math.inf, 0.0)):
            self._ranks[None], self.worst = rank, made


def empty(check: Check) -> list[Cell]:
    """Return the cells of a check, in which nothing is measured yet."""
    return [Cell(check, who, attack) for who in check.adversaries for attack in check.attacks]


def attack_all(cells: Sequence[Cell], made: Recorded) -> None:
    """Attack one run; what an adversary learns of a node is deduced once for all attacks, and held for one node at a time."""
    for who in dict.fromkeys(c.who for c in cells):
        mine = [c for c in cells if c.who == who]
        heard, nodes = Deduction(made.trace, mine[0].adversary), held(mine[0], made)
        for node in nodes:
            leaks = hearing.deduce(heard, [node], mine[0].check.gradients)
            for cell in mine:
                cell.reasons |= leaks.undetermined
                for leak in leaks:
                    cell.attack_one(made, leak)
        for cell in mine:
            cell.close(made, nodes)


def held(cell: Cell, made: Recorded) -> tuple[int, ...]:
    """Return the nodes that are attacked: those named, else all that hold data and are not the adversary's."""
    if cell.check.nodes is not None:
        return cell.check.nodes
    own = set(made.truth.node.tolist())
    nodes = tuple(n for n in hearing.targets(made.trace, cell.adversary) if n in own)
    if not nodes:
        raise LeakauditError(
            f"{cell.name}: expected a node with records in the truth that is not the adversary's, found none"
        )
    return nodes
