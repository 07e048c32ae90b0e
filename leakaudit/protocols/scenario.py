"""A recording described as a value: the protocol, the data, the model and what is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from leakaudit._util import config
from leakaudit._util.forms import form
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError, brief
from leakaudit.protocols import calibration
from leakaudit.protocols.victim import Victim
from leakaudit.tasks import weights
from leakaudit.tasks.selection import LABELS, ROWS, Selection

DTYPES = ("float32", "float64")
WORDS = {
    "dtype": DTYPES,
    "rows": tuple(ROWS),
    "labels": tuple(LABELS),
    "calibrate": calibration.METHODS,
    "reduction": ("mean", "sum"),
}
LEAST = {"rounds": 1, "samples": 1, "nodes": 1, "test": 0, "every": 1}
LARGEST = 2**31 - 1  # rounds, samples and nodes: files store them in 32 bits


@dataclass(frozen=True)
class Scenario:
    """The complete description of a run.

    Attributes:
        victim: Name of the protocol.
        nodes: Number of nodes that hold data.
        graph: Communication graph, one of the kinds of `topology.make`.
        rounds: Length of the run.
        data: Name of the data set.
        samples: Records per node.
        split: How the records are divided among the nodes.
        classes: Classes of the data set that are used, such as ``0,1``; or ``all``.
        rows: Scale of the records: ``raw``, ``unit`` (norm 1) or ``range`` (features in [0, 1]).
        labels: ``classes``; or ``signs`` (-1 and +1) or ``one-hot``, targets of the squared loss.
        reduction: Whether the objective of a node is the ``mean`` or the ``sum`` over its records.
        model: Name of the model.
        set: Constants of the victim and arguments of the model, by name.
        dtype: ``float32`` or ``float64``.
        seed: Determines all randomness of the run.
        wires: Undirected edges that are recorded: ``all``, ``none``, ``node:3`` or ``0-1,1-2``.
        layers: Columns of the model vector that are recorded: ``all``; or ``first``, ``last`` and
            names of parameters or modules, and ``sketch`` for a sketch of all columns, joined by
            commas.
        states: Whether the truth contains the private vectors.
        curves: Whether the truth contains loss, accuracy, consensus and norms of every round.
        calibrate: What sets the noise for an ``epsilon`` in `set`: the ``claim`` of the victim's
            paper, or the ``exact`` view of the strongest adversary.
        test: Number of held-out records on which curves evaluate the models.
        every: Rounds between two points of the curves, which have the first and last round.
        weights: File of trained weights from which the run starts, ``FILE.safetensors``; it may
            end with ``@sha256:`` and the digest that is expected. Empty for a random model.
    """

    victim: str = "pdmm"
    nodes: int = 10
    graph: str = "rgg"
    rounds: int = 20
    data: str = "faces"
    samples: int = 1
    split: str = "iid"
    classes: str = "all"
    rows: str = "raw"
    labels: str = "classes"
    reduction: str = "mean"
    model: str = "mlp"
    set: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    seed: int = 0
    wires: str = "all"
    layers: str = "all"
    states: bool = False
    curves: bool = False
    calibrate: str = "claim"
    test: int = 0
    every: int = 1
    weights: str = ""

    def __post_init__(self) -> None:
        config.check(vars(self), FORM)
        for name, words in WORDS.items():
            if getattr(self, name) not in words:
                expected = f"expected {_either(words)}, got {brief(getattr(self, name), 40)}"
                raise config.InvalidValue("", expected, name)
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                expected = f"expected at least {least}, got {getattr(self, name)}"
                raise config.InvalidValue("", expected, name)
            if getattr(self, name) > LARGEST:
                expected = f"expected at most {LARGEST}, got {brief(getattr(self, name), 20)}"
                raise config.InvalidValue("", expected, name)
        if self.weights and not weights.is_place(self.weights):
            expected = f"expected FILE.safetensors, got {brief(self.weights, 40)}"
            raise config.InvalidValue("", expected, "weights")

    def pinned(self) -> Scenario:
        """Return the scenario with the digest of its weights, so that no other file will do.

        A file that cannot be read is left as it is; the run rejects it.
        """
        if not self.weights:
            return self
        return replace(self, weights=weights.pinned(self.weights))

    @property
    def summed(self) -> int:
        """Number of records of which a gradient is the sum; 1 if it is their mean."""
        return self.samples if self.reduction == "sum" else 1

    @property
    def selection(self) -> Selection:
        """What the run takes from its data set.

        Logistic regression has the same loss whether labels are 0 and 1, signs or one-hot, so that
        its labels always are classes.
        """
        labels = "classes" if self.model == "logistic" else self.labels
        return Selection(self.data, self.classes, self.rows, labels, held=self.test > 0)

    @classmethod
    def from_toml(cls, path: Path) -> Scenario:
        """Read a scenario file, or the scenario of an audit's file.

        Args:
            path: The file.

        Raises:
            LeakauditError: It cannot be read, is empty, has an unknown key, or a value has the
                wrong type.
        """
        return cls.of(config.read(path, f"scenario {path}"))

    @classmethod
    def of(cls, file: config.ConfigTable) -> Scenario:
        """Return the scenario of a file.

        Args:
            file: If it has a table ``scenario``, that table is used; otherwise all but ``audit``.

        Raises:
            LeakauditError: It is empty, a key is unknown, or a value has the wrong type.
        """
        if not file.values:  # such as what remains of a file on a full disk
            raise LeakauditError(f"{file.file} is empty: expected keys such as victim and rounds")
        if "scenario" in file.values:
            file = file.table("scenario")
        return file.without("audit").decode(FORM, cls)

    def to_toml(self) -> str:
        """Return the scenario as text for `from_toml`.

        Returns:
            TOML. None, which TOML lacks, becomes the text ``none``, as on the command line.

        Raises:
            LeakauditError: A constant cannot be expressed in TOML.
        """
        constants = {key: "none" if value is None else value for key, value in self.set.items()}
        return config.written({**asdict(self), "set": constants})

    def parts(self) -> tuple[Victim, dict[str, Any]]:
        """Return the configured victim, and the entries of `set` for the model.

        A victim's ``samples`` or ``records``, on which noise and claims depend, and a ``horizon``
        are taken from the scenario if `set` does not contain them. An epsilon that
        is a `target` is still to be found.

        Raises:
            LeakauditError: The victim is incomplete, does not accept one of its constants, or adds
                no noise although an epsilon is given.
        """
        kind = self._kind
        mine = registry.parameters(kind)
        constants: dict[str, Any] = {k: self.samples for k in ("samples", "records") if k in mine}
        if "horizon" in mine:
            constants["horizon"] = self.rounds
        found = self.target()
        taken = set[str]()  # by the calibration
        if kind.noise_constant in mine:
            taken.add(calibration.EPSILON)
        if found is not None:
            taken.update(calibration.HELPS)
        replaced = found is not None and calibration.replaces(mine, kind.noise_constant)
        rest = {}
        for key, value in self.set.items():
            if key in mine and not (key == calibration.EPSILON and replaced):
                constants[key] = value
            elif key not in taken:
                rest[key] = value
        victim: Victim = registry.configure(kind, constants)
        if victim.silent:
            error = calibration.dropped(self.set, kind.noise_constant, kind.noiseless)
            if error is not None:
                raise LeakauditError(f"{self.victim}: {error}")
        return victim, rest

    def target(self) -> calibration.Target | None:
        """Return the noise that is to be found for an ``epsilon`` in `set`; None if none is.

        Raises:
            LeakauditError: The noise is given as well, or a number is not positive.
        """
        kind = self._kind
        exact = self.calibrate == calibration.EXACT
        try:
            return calibration.target(
                self.set, registry.parameters(kind), kind.noise_constant, exact
            )
        except LeakauditError as error:
            raise LeakauditError(f"{self.victim}: {error}") from None

    def without_epsilon(self) -> Scenario:
        """Return the scenario with its noise as it is set: no ``epsilon`` in place of it.

        Raises:
            LeakauditError: There is no such victim.
        """
        kind = self._kind
        mine = registry.parameters(kind)
        dropped = {*calibration.added(mine, kind.noise_constant)}
        if calibration.replaces(mine, kind.noise_constant):
            dropped.add(calibration.EPSILON)
        kept = {name: value for name, value in self.set.items() if name not in dropped}
        return replace(self, set=kept, calibrate=calibration.CLAIM)

    @property
    def _kind(self) -> type[Victim]:
        kind = registry.get("victims", self.victim)
        if not (isinstance(kind, type) and issubclass(kind, Victim)):
            raise LeakauditError(
                f"victim {self.victim!r}: expected a subclass of leakaudit.Victim, got {kind!r}"
            )
        return kind


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


FORM = form(Scenario)
