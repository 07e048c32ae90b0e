"""A cell of a gate: a program under test, an adversary and an attack, over all seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from leakaudit._util.seeds import generator
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Truth
from leakaudit.inversion import attacking
from leakaudit.judging.gate import measures
from leakaudit.judging.gate.config import Check, cell_name
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.reporting.figures.pictures import Pair, pair_up
from leakaudit.reporting.results.model import NodeBest
from leakaudit.reporting.results.provenance import digest
from leakaudit.scoring.scoring import Score, score
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

Rank = tuple[float, float]  # quality of an input, then the share of the labels; larger is better


@dataclass
class GateCell:
    """The measurements so far."""

    check: Check
    who: str  # the adversary, as written in the configuration
    attack: str
    seeds: list[int] = field(default_factory=list)  # seeds of the runs that were attacked
    samples: dict[str, list[float]] = field(default_factory=dict)  # measure -> one number per seed
    # reconstructions for each seed and node, with the truth of that run
    found: list[tuple[Reconstruction, Truth]] = field(default_factory=list)
    # reconstructions of planted records, with their truth
    planted: list[tuple[Reconstruction, Truth]] = field(default_factory=list)
    leak: GradientLeak | None = None  # the first leak that was attacked
    # node -> its record that was recovered best
    nodes: dict[int, NodeBest] = field(default_factory=dict)
    # node -> why no leak is determined, or why the attack cannot use the leak
    reasons: dict[int, str] = field(default_factory=dict)
    # nodes of which it is not known what their messages reveal
    not_understood: set[int] = field(default_factory=set)
    worst: NodeBest | None = None  # the record of all nodes that was recovered best
    pair: Pair | None = None  # that record and its reconstruction, if they are images
    tried: int = 0  # number of leaks that were attacked
    records: int = 0  # number of records of the attacked nodes, in the last run
    seconds: float = 0.0  # duration of all attacks
    _ranks: dict[int, Rank] = field(default_factory=dict)  # node -> rank of its record in `nodes`
    _best: Rank = (-math.inf, 0.0)  # rank of `worst`
    _scores: dict[int, Score] = field(default_factory=dict)  # node -> score in the current run

    @property
    def name(self) -> str:
        """``check/adversary/attack``, as in the configuration."""
        return cell_name(self.check.name, self.who, self.attack)

    @property
    def adversary(self) -> Adversary:
        """The adversary."""
        return Adversary.parse(self.who)

    @property
    def settings(self) -> dict[str, object]:
        """Hyper-parameters that the configuration sets."""
        return dict(self.check.set.get(self.attack, {}))

    def digest(self) -> str:
        """Return a SHA-256 of how the cell is measured; other measurements are not comparable."""
        settings = self.settings
        if self.attack != "auto":
            configured = registry.configure(registry.get("attacks", self.attack), settings)
            settings = registry.values(configured)
        return digest(
            {
                "attack": self.attack,
                "settings": settings,
                "adversary": str(self.adversary),
                "gradients": self.check.gradients,
                "nodes": self.check.nodes,
                "measures": measures.VERSION,
            }
        )

    def attack_one(self, run: SeedResults, leak: GradientLeak) -> None:
        """Attack one node, and keep the result until `close`."""
        start = time.perf_counter()
        self.leak = self.leak or leak
        random = generator(run.seed, leak.node)
        try:
            found = attacking.attack_one(leak, run.task, self.attack, random, **self.settings)
        except AttackError as error:
            self.reasons[leak.node] = str(error)
            return
        self.tried += 1
        (scored,) = score(found, run.truth, own=True)
        self._scores[leak.node] = scored
        self.found.append((found, run.truth))
        pairs = pair_up([found], [scored], run.truth, own=True)
        self._keep_best(leak, scored, run.seed, pairs)
        self.seconds += time.perf_counter() - start

    def close(self, run: SeedResults, nodes: Sequence[int]) -> None:
        """Compute one number per measure."""
        columns = [measures.values(run.guess(node), self._scores.get(node)) for node in nodes]
        for name in columns[0]:
            records = [value for column in columns for value in column[name]]
            self.samples.setdefault(name, []).append(measures.sample(name, records))
            self.records = len(records)
        self.seeds.append(run.seed)
        self._scores.clear()

    def _keep_best(
        self, leak: GradientLeak, scored: Score, seed: int, pairs: Sequence[Pair]
    ) -> None:
        """Keep the record that was recovered best, for this node and for all nodes.

        Labels only break ties, because any recovered input is more informative than labels.
        """
        gains = _gains(scored)
        at = gains.index(max(gains))
        rank = gains[at], scored.labels_found or 0.0
        made = NodeBest(
            seed=seed,
            node=leak.node,
            psnr=_at(scored.psnr, at),
            relative_error=_at(scored.relative_error, at),
            exact=bool(_at(scored.exact, at)),
            labels=scored.labels_found,
            kind=leak.kind,
            first=int(leak.rounds.min()),
            last=int(leak.rounds.max()),
            formula=leak.formula,
        )
        if leak.node not in self.nodes or rank > self._ranks[leak.node]:
            self._ranks[leak.node] = rank
            self.nodes[leak.node] = made
        if rank > self._best:
            self._best = rank
            self.worst = made
            self.pair = None
            if at < len(pairs) and pairs[at].found is not None:
                self.pair = pairs[at]


def _gains(scored: Score) -> list[float]:
    """Return the PSNR of each record, otherwise minus its relative error."""
    gains = []
    if scored.psnr is not None:
        for psnr in scored.psnr:
            gains.append(-math.inf if psnr is None else float(psnr))
        return gains
    for error in scored.relative_error or (None,):
        gains.append(-math.inf if error is None else float(-error))
    return gains


def _at(column: Sequence[float | None] | None, place: int) -> float | None:
    if column is None:
        return None
    return column[place]


def empty(check: Check) -> list[GateCell]:
    """Return the cells of a check, without measurements."""
    return [GateCell(check, who, attack) for who in check.adversaries for attack in check.attacks]


def attack_all(cells: Sequence[GateCell], made: SeedResults) -> None:
    """Attack one run with all cells; the attacks of an adversary share its leaks."""
    for who in dict.fromkeys(cell.who for cell in cells):
        mine = [cell for cell in cells if cell.who == who]
        heard = Deduction(made.trace, mine[0].adversary)
        nodes = held(mine[0], made)
        for node in nodes:
            leaks = hearing.deduce(heard, [node], mine[0].check.gradients)
            for cell in mine:
                cell.reasons |= leaks.undetermined
                cell.not_understood |= leaks.not_understood
                for leak in leaks:
                    cell.attack_one(made, leak)
        for cell in mine:
            cell.close(made, nodes)


def held(cell: GateCell, made: SeedResults) -> tuple[int, ...]:
    """Return the nodes that the check names; otherwise all honest ones with data."""
    if cell.check.nodes is not None:
        return cell.check.nodes
    own = set(made.truth.node.tolist())
    nodes = tuple(node for node in hearing.targets(made.trace, cell.adversary) if node in own)
    if not nodes:
        expected = "expected a node with records in the truth that the adversary does not control"
        raise LeakauditError(f"{cell.name}: {expected}, found none")
    return nodes
