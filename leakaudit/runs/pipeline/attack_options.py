"""The options of an attack run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leakaudit._util.own_code import Trust
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Json, Trace
from leakaudit.views.extraction import hearing


@dataclass(frozen=True)
class AttackOptions:
    """The options of an attack run."""

    adversary: Adversary = field(default_factory=Adversary)
    nodes: tuple[int, ...] | None = None  # nodes to attack; None for all
    attack: str = "auto"  # a name or `auto`
    settings: Mapping[str, str] = field(default_factory=dict)  # hyper-parameters of the attack
    rounds: int | None = None  # maximum number of gradients; None for the default
    truth: str = "auto"  # a file, `auto` (the one beside the trace) or `none`
    lpips_weights: str = "auto"  # the argument of `lpips_weights.find`
    seed: int = 0  # seed of the random numbers of the attacks
    device: str = "cpu"  # torch device for the attacks
    max_seconds: float = 0.0  # time limit in seconds; 0 for none
    trusted: Trust = False  # the `package.module:factory` that may execute its code; True for any
    # whether to continue an interrupted run with the same options in the output folder
    resume: bool = False
    # bytes for the gradients and models of a node and for attacking one of them; None for no limit
    max_memory: int | None = None

    def within(self, trace: Trace) -> AttackOptions:
        """Return the options with as many gradients as `max_memory` allows."""
        if self.max_memory is None:
            return self
        return replace(self, rounds=hearing.affordable(trace, self.rounds, self.max_memory))

    def to_json(self) -> dict[str, Json]:
        """Return the effective configuration, for the record and its digest."""
        adversary = self.adversary
        window = adversary.window
        knows = adversary.knows
        return {
            "adversary": str(adversary),
            "window": None if window is None else [window.start, window.stop],
            "knows": knows if isinstance(knows, str) else sorted(knows),
            "nodes": None if self.nodes is None else list(self.nodes),
            "settings": dict(self.settings),
            "attack": self.attack,
            "rounds": self.rounds,
            "truth": self.truth,
            "lpips_weights": self.lpips_weights,
            "seed": self.seed,
            "device": self.device,
            "max_seconds": self.max_seconds,
            "trusted": self.trusted,
        }
