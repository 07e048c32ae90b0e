"""The verbs of the command line as functions, for notebooks and other programs.

Each loads only what its own verb needs, when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, Unpack, overload

from leakaudit._util import earlier_names
from leakaudit._util.own_code import Trust
from leakaudit.core.progress import visible

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Generator, Tensor

    from leakaudit.core.adversary import Adversary
    from leakaudit.core.leak import Leaks
    from leakaudit.core.reconstruction import Reconstructions
    from leakaudit.core.trace import Json, TaskSpec, Trace, Truth
    from leakaudit.inversion.attack import Attack
    from leakaudit.judging.auditing.plan import AuditPlan
    from leakaudit.judging.gate.judge import GateResults as GateJudged
    from leakaudit.judging.papers import JudgedClaim
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.reporting.findings.flat import FlatTable, Row
    from leakaudit.reporting.results.model import AuditRecord, Finding, Record
    from leakaudit.runs.reproducing.run import Reproduced
    from leakaudit.runs.sweeping.plan import SweepPlan
    from leakaudit.runs.sweeping.run import SweepOutcome
    from leakaudit.runs.workers.executor import Executor
    from leakaudit.scoring.scoring import Score
    from leakaudit.tasks.task import Task
    from leakaudit.views.accounting.bounding import BoundOptions
    from leakaudit.views.accounting.compare import Comparisons

File = str | os.PathLike[str]
Tensors: TypeAlias = "Tensor | Mapping[str, Tensor] | Iterable[Tensor]"
Results: TypeAlias = (
    "File | Record | GateJudged | SweepOutcome | Sequence[Finding] | Sequence[Score]"
)
TextFormat = Literal[
    "html", "markdown", "text", "json", "junit", "sarif", "github", "csv", "latex", "svg"
]
OUTPUT = "leakaudit-out"
RECORD = "results.json"
TABLES = ("csv", "latex", "json")  # report formats that show one table of a record
FIGURES = ("pdf", "svg", "png")
# A sweep has neither pictures nor checks.
SWEEP_FORMS = ("html", "text", "markdown", *TABLES, *FIGURES)


@visible
def record(
    scenario: Scenario | File,
    path: File | None = None,
    *,
    data_root: File | None = None,
    download: bool = False,
    device: str = "cpu",
    max_bytes: int = 4_000_000_000,
    trusted: Trust = False,
) -> tuple[Trace, Truth]:
    """Run a bundled or registered protocol and record what its nodes send.

    Args:
        scenario: The protocol, model, data and settings, or a TOML file with them.
        path: Trace file to write, with the truth beside it. None keeps both in memory.
        data_root: Folder with data sets that are not bundled.
        download: Whether missing data sets may be downloaded.
        device: torch device on which the protocol runs.
        max_bytes: Maximum size of the recording in bytes.
        trusted: The ``package.module:factory`` that may execute its code; True for any.

    Returns:
        The trace, from which an adversary reads its view, and the truth, for scoring only.

    Raises:
        LeakauditError: The scenario cannot run, or needs more than `max_bytes`.
    """
    from leakaudit.judging.auditing.environment import RunEnvironment
    from leakaudit.protocols import recording
    from leakaudit.protocols.scenario import Scenario

    if not isinstance(scenario, Scenario):
        scenario = Scenario.from_toml(Path(scenario))
    root = None if data_root is None else Path(data_root)
    where = RunEnvironment(root, download, device, trusted=trusted)
    recorder = recording.record(
        where.plan(scenario), None if path is None else Path(path), max_bytes
    )
    return recorder.trace, recorder.truth_record


@visible
def from_gradient(
    gradient: Tensors,
    weights: Tensors,
    task: TaskSpec | Task,
    *,
    batch: int = 0,
    path: File | None = None,
) -> Trace:
    """Make a trace of one gradient of a known model, which `leaks` and `attack` then read.

    Args:
        gradient: Gradient of the mean loss of a batch, by name of the parameter, in the order of
            the parameters, or as one vector (d,).
        weights: Parameters at which it was computed, in the same forms; by name, such as a
            ``state_dict``, also the running statistics.
        task: The model, its loss, and the shape of an input. A user's own factory is executed.
        batch: Number of records of the batch, 0 if it is not known.
        path: Trace file to write. None keeps the trace in memory.

    Returns:
        The trace of a server that sends the weights, and of a client that sends the gradient.

    Raises:
        LeakauditError: Names, shapes or numbers are not those of the model.
    """
    from leakaudit.capture import gradient as capture
    from leakaudit.tasks.task import Task
    from leakaudit.traces.recorder import Storage

    given, start = capture.tensors_of(gradient), capture.tensors_of(weights)
    made = task if isinstance(task, Task) else capture.built(task, start, given)
    found = capture.vector(given, made, "gradient")
    return capture.record(Storage(path), made, start, found, batch)


@visible
def attack(
    leaks: Leaks,
    attack: str | Attack = "auto",
    *,
    generator: Generator,
    task: Task | None = None,
    **settings: object,
) -> Reconstructions:
    """Reconstruct the inputs behind leaks.

    Args:
        leaks: What an adversary learns, from `leakaudit.leaks`.
        attack: An attack, such as ``la.attacks.DLG(steps=500)``, its name, or "auto": the
            strongest that applies to each leak.
        generator: Source of all randomness.
        task: ``Task.build(leaks.task, trusted=True)``, if the model is a user's own factory.
        **settings: Hyper-parameters of an attack given by name.

    Returns:
        A reconstruction for each leak, in order.

    Raises:
        LeakauditError: There is no such attack or setting, or an argument has the wrong type.
        AttackError: A named attack cannot use a leak.
    """
    from leakaudit.inversion import attacking

    return attacking.attack(leaks, attack, generator=generator, task=task, **settings)


@earlier_names.keywords("bound")
@visible
def bound(
    source: Trace | Scenario | File,
    adversaries: Iterable[Adversary | str] | Adversary | str | None = None,
    nodes: Sequence[int] | None = None,
    *,
    coalitions: int = 1,
    sensitivity: float | None = None,
    delta: float | None = None,
    executor: Executor | None = None,
    options: BoundOptions | None = None,
) -> Comparisons:
    """Bound the privacy of one record in the view of every adversary, beside the claim.

    If a trace contradicts its declaration, the last entry of `Comparison.rests` says how.

    Args:
        source: A trace, a scenario, or a file of either.
        adversaries: Adversaries, also as text such as "node:3"; by default the outsider, an
            eavesdropper on each channel of a node, each neighbour, and coalitions.
        nodes: Nodes to analyse; all by default.
        coalitions: Maximum number of nodes that cooperate, if `adversaries` is None.
        sensitivity: Largest change of a gradient by one record (Euclidean norm); by default that
            of the claim, else of the declared clip, without which there is no epsilon.
        delta: Delta at which epsilon is stated; by default that of the claim, else 1e-5.
        executor: Where the views are computed; this process by default.
        options: A smoothness, a target of the recommended noise, and where data sets are.

    Returns:
        Mu, epsilon, claim, verdict and noise for each node and adversary.

    Raises:
        LeakauditError: A file, a node or a number cannot be used.
    """
    from leakaudit._util.jobs import IN_PROCESS
    from leakaudit.core.adversary import Adversary, node_list
    from leakaudit.judging.auditing.environment import RunEnvironment
    from leakaudit.judging.lint import assumptions
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.views.accounting import bounding, survey
    from leakaudit.views.accounting.adversaries import named
    from leakaudit.views.accounting.compare import Comparisons, compare, resting

    chosen = node_list(nodes)
    own = options or bounding.BoundOptions()
    asked = bounding.checked(sensitivity, own.smoothness, delta, own.epsilon)
    root = None if own.data_root is None else Path(own.data_root)
    protocol, holders = bounding.protocol_of(source, RunEnvironment(root, own.download).plan)
    if adversaries is None:
        if chosen is None:
            chosen = list(range(holders))
        heard = survey.adversaries(protocol, chosen, coalitions, executor or IN_PROCESS)
    else:
        if isinstance(adversaries, Adversary | str):
            adversaries = [adversaries]
        who = [Adversary.of(one) for one in adversaries]
        heard = named(who, chosen, holders)
    found = compare(protocol, heard, executor=executor or IN_PROCESS, **asked)
    if isinstance(source, Scenario):
        return Comparisons(found)
    return resting(found, assumptions.doubts(assumptions.case_of(source)))


@visible
def audit(
    plan: AuditPlan | File,
    folder: File = OUTPUT,
    *,
    data_root: File | None = None,
    download: bool = False,
    device: str = "cpu",
    max_seconds: float = 0.0,
    executor: Executor | None = None,
) -> AuditRecord:
    """Attack a scenario at several values of epsilon, and test its claims.

    Args:
        plan: The audit, or the TOML file that describes it.
        folder: Folder for results.json, the figure, the pictures and report.md.
        data_root: Folder with data sets that are not bundled.
        download: Whether missing data sets may be downloaded.
        device: torch device for attacks and replays.
        max_seconds: Time limit for all of them together; 0 for none.
        executor: Where everything is computed; this process by default.

    Returns:
        The content of results.json: ``audit.verdicts`` are the judged claims.

    Raises:
        LeakauditError: The plan, its data or the folder cannot be used.
    """
    from leakaudit._util.jobs import IN_PROCESS
    from leakaudit.judging.auditing.environment import RunEnvironment
    from leakaudit.judging.auditing.plan import AuditPlan
    from leakaudit.judging.auditing.run import audit as run

    if not isinstance(plan, AuditPlan):
        plan = AuditPlan.from_toml(Path(plan))
    root = None if data_root is None else Path(data_root)
    where = RunEnvironment(root, download, device, max_seconds)
    return run(plan, Path(folder), where, executor or IN_PROCESS)


@visible
def check(
    folder: File = ".",
    checks: Sequence[str] = (),
    *,
    seed: int = 0,
    strict: bool = False,
) -> GateJudged:
    """Run the privacy gate of a repository.

    Args:
        folder: Folder with leakaudit.toml, or a pyproject.toml with its tables, and the baseline.
        checks: Names of the checks to run; all by default.
        seed: First seed of the recordings.
        strict: Whether an increase that is not significant results in code 3.

    Returns:
        The measurements; ``code`` is 0 for no regression, 1 for a leak, 3 if inconclusive.

    Raises:
        LeakauditError: The configuration or the baseline cannot be used.
    """
    from leakaudit.judging.gate import files, judge

    gate = files.configured(Path(folder)).only(list(checks))
    return judge.run(gate, files.compared(gate), seed, strict=strict)


@visible
def claims(
    papers: Sequence[str] = (), rows: Sequence[int] = (), *, executor: Executor | None = None
) -> list[JudgedClaim]:
    """Re-evaluate published privacy claims.

    Args:
        papers: Names from `leakaudit.judging.papers.PAPERS`; all by default.
        rows: Numbers of claims; all by default.
        executor: Where they are evaluated; this process by default.

    Returns:
        Each claim with its verdicts and the evidence.

    Raises:
        LeakauditError: There is no such paper or number.
    """
    from leakaudit._util.jobs import IN_PROCESS
    from leakaudit.judging.papers import judge, select

    return list(judge(select(papers, rows), executor or IN_PROCESS))


@visible
def reproduce(
    items: str | Iterable[str],
    folder: File = OUTPUT,
    *,
    scale: Literal["small", "paper"] = "small",
    seeds: int | None = None,
    executor: Executor | None = None,
    retry_failed: bool = False,
    data_root: File | None = None,
    download: bool = False,
) -> list[Reproduced]:
    """Reproduce published figures, tables and theorems; the same call continues an earlier one.

    Args:
        items: ``PAPER/ITEM`` such as ``thesis/fig5.1``, ``PAPER`` for all of its items, or a TOML
            file with an item; several of them as a list.
        folder: Folder for the pages, figures and results.
        scale: ``small`` takes at most about two minutes an item, ``paper`` is the paper's own size.
        seeds: Number of seeds; that of the item by default.
        executor: Where the runs are computed; by default in one process per processor.
        retry_failed: Whether runs that failed earlier are run once more.
        data_root: Folder with data sets that are not bundled.
        download: Whether missing data sets may be downloaded.

    Returns:
        Each item with its verdict, and the printed numbers beside ours.

    Raises:
        LeakauditError: There is no such item, or the folder cannot be written.
    """
    from leakaudit.runs.reproducing import reproduce as reproducing
    from leakaudit.runs.sweeping import run

    names = (items,) if isinstance(items, str) else tuple(items)
    root = None if data_root is None else Path(data_root)
    options = run.SweepOptions(
        executor or run.every_core(), again=retry_failed, data_root=root, download=download
    )
    return reproducing.reproduce(names, Path(folder), options, scale, seeds).found


@earlier_names.keywords("sweep")
@visible
def sweep(
    plan: SweepPlan | File,
    folder: File = OUTPUT,
    *,
    executor: Executor | None = None,
    shard: tuple[int, int] = (1, 1),
    retry_failed: bool = False,
    data_root: File | None = None,
    download: bool = False,
    trusted: Trust = False,
) -> SweepOutcome:
    """Run every combination of a plan; the same call continues an interrupted sweep.

    Args:
        plan: The sweep, or the TOML file that describes it.
        folder: Folder for the cells, results.json, the figure and a report.
        executor: Where the cells are computed; by default in one process per processor.
        shard: (i, n) runs the i-th of n parts, counted from 1.
        retry_failed: Whether cells that failed earlier are run once more.
        data_root: Folder with data sets that are not bundled.
        download: Whether missing data sets may be downloaded.
        trusted: The ``package.module:factory`` that may execute its code; True for any.

    Returns:
        The outcome, with the results if all parts are in the folder.

    Raises:
        LeakauditError: The plan, its data or the folder cannot be used.
    """
    from leakaudit.runs.sweeping import run, tables
    from leakaudit.runs.sweeping.plan import SweepPlan

    if not isinstance(plan, SweepPlan):
        plan = tables.load(Path(plan))
    root = None if data_root is None else Path(data_root)
    options = run.SweepOptions(
        executor or run.every_core(), shard, retry_failed, root, download, trusted
    )
    return run.sweep(plan, Path(folder), options)


@dataclass(frozen=True)
class ReportOptions:
    """How a report is shown.

    Attributes:
        location: File of your repository to which SARIF findings refer.
        width: Columns to which "text" is wrapped; None does not wrap lines.
        color: Whether "text" contains terminal codes for colours.
        verbose: Whether "text" lists the rules of a gate that are within their limits, too.
    """

    location: str | None = None
    width: int | None = None
    color: bool = False
    verbose: bool = False


class _ReportArguments(TypedDict, total=False):
    """The arguments of `report`."""

    against: File | None  # as for `report`, like all others
    redact: bool
    redact_key: str | None
    table: str | None
    figure_width: str | float | None
    options: ReportOptions | None


@overload
def report(
    results: File, format: Literal["pdf", "png"], **given: Unpack[_ReportArguments]
) -> bytes: ...


@overload
def report(results: File, format: TextFormat = ..., **given: Unpack[_ReportArguments]) -> str: ...


@overload
def report(results: File, format: str, **given: Unpack[_ReportArguments]) -> str | bytes: ...


@earlier_names.keywords("report")
def report(
    results: File,
    format: str = "html",
    *,
    against: File | None = None,
    redact: bool = False,
    redact_key: str | None = None,
    table: str | None = None,
    figure_width: str | float | None = None,
    options: ReportOptions | None = None,
) -> str | bytes:
    """Render a results file in another format.

    Args:
        results: results.json of an attack, an audit, a gate or a sweep, or its folder.
        format: Name of a report: "html", "markdown", "text", "json", "junit", "sarif", "github",
            "csv", "latex", "pdf", "svg", "png", or one of a plug-in.
        against: Earlier results.json, or its folder, to compare with.
        redact: Whether to omit pictures, labels, notes and paths, and to renumber the nodes.
        redact_key: Redact; reports with the same secret key use the same node numbers.
        table: Table of "csv", "latex" and "json", such as "curves" of an audit; by default the
            first of `leakaudit.reporting.findings.flat.NAMES`, and the whole record for "json".
        figure_width: Width of "pdf", "svg" and "png": "column" (84 mm), "page" (174 mm, the
            default), or a number of millimetres.
        options: How "text" is laid out, and the file that SARIF findings name.

    Returns:
        The report; bytes for "pdf" and "png".

    Raises:
        LeakauditError: There is no such report, or the file or an option does not go with it.
    """
    from leakaudit.core.errors import LeakauditError
    from leakaudit.reporting.findings import comparison
    from leakaudit.reporting.rendering import attachments
    from leakaudit.reporting.results import record_file

    own = options or ReportOptions()
    source = file_of(results)
    render = _renderer(format, table, figure_width)
    shown = record_file.read(source)
    kind = str(shown["kind"])
    if format == "text":
        render = partial(render, width=own.width, color=own.color, verbose=own.verbose)
    if kind == "sweep" and format not in SWEEP_FORMS:
        forms = ", ".join(SWEEP_FORMS)
        raise LeakauditError(f"-f: expected {forms} for the results of a sweep, got {format}")
    redacted = redact or redact_key is not None
    if kind == "sweep" and (against is not None or redacted):
        raise LeakauditError(
            "--against and --redact do not apply to the results of a sweep, which contain no "
            "pictures or labels; omit them"
        )
    if kind == "check" and against is not None:
        raise LeakauditError(
            "--against takes results of 'attack' and 'audit'; results of 'check' are compared with "
            "the baseline of the gate"
        )
    if against is not None and format in (*TABLES, *FIGURES) and format != "json":
        raise LeakauditError(
            f"--against does not apply to {format}, which shows one record; omit it"
        )
    earlier = None if against is None else record_file.read(file_of(against))
    # The location is named for this report, so it stays in a redacted one.
    named = {} if own.location is None else {"location": own.location}
    if redacted:
        from leakaudit.reporting.findings import redaction  # it knows all data sets and models

        if earlier is not None:
            return render({**redaction.redact_compared(shown, earlier, redact_key), **named})
        return render({**redaction.redact(shown, redact_key), **named})
    shown = {**shown, **named}
    record_file.whole(shown, source.parent)
    if earlier is not None:
        shown = comparison.compare(shown, earlier)
    return render(attachments.attached(shown, source.parent, format))


def table(results: Results, name: str | None = None) -> list[Row]:
    """Return results as plain rows, for data frames, spreadsheets and plots.

    Args:
        results: What `audit`, `check` or `sweep` returned; a results file or its folder; or a list
            of findings, or of scores.
        name: Table, such as "curves" of an audit; by default the first of
            `leakaudit.reporting.findings.flat.NAMES`.

    Returns:
        One dictionary per finding, score, verdict, rule or point, with plain values.

    Raises:
        LeakauditError: A file cannot be used, or these results have no such table.
    """
    return _flat(results, name).dicts()


def to_pandas(results: Results, table: str | None = None) -> DataFrame:
    """Return results as a data frame of pandas, with the rows of `table`.

    Args:
        results: As for `table`.
        table: Name of the table, as for `table`.

    Returns:
        The data frame.

    Raises:
        LeakauditError: As for `table`, or pandas is not installed.
    """
    from leakaudit.reporting.findings import flat

    return flat.frame(_flat(results, table))


def _flat(results: Results, name: str | None) -> FlatTable:
    """Return one table of anything that users hold."""
    from leakaudit.core.errors import LeakauditError
    from leakaudit.reporting.findings import flat
    from leakaudit.reporting.results import model, record_file

    if isinstance(results, str | os.PathLike):
        return flat.table(model.of(record_file.read(file_of(results))), name)
    if isinstance(results, model.RunRecord | model.SweepRecord):
        return flat.table(results, name)
    if isinstance(results, Sequence):
        return _of_list(results, name)
    from leakaudit.runs.sweeping.run import SweepOutcome

    if isinstance(results, SweepOutcome):
        return flat.table(results.complete_record(), name)
    from leakaudit.judging.gate import record
    from leakaudit.judging.gate.judge import GateResults

    if isinstance(results, GateResults):
        return flat.of_gate(record.part(results), name)
    raise LeakauditError(
        "expected the results of audit, check or sweep, a results file, or a list of findings or "
        f"scores, got {type(results).__name__}"
    )


def _of_list(results: Sequence[object], name: str | None) -> FlatTable:
    """Return the table of some findings or scores."""
    from leakaudit.core.errors import LeakauditError
    from leakaudit.reporting.findings import flat
    from leakaudit.reporting.results import model
    from leakaudit.scoring.scoring import Score

    if name is not None:
        raise LeakauditError(f"a list has a single table; omit {name!r}")
    findings = [one for one in results if isinstance(one, model.Finding)]
    if len(findings) == len(results):
        return flat.of_findings(findings)
    scores = [one for one in results if isinstance(one, Score)]
    if len(scores) < len(results):
        raise LeakauditError("expected a list of findings, or of scores")
    return flat.of_scores(scores)


def log_to(
    tracker: str,
    run: File | Record | GateJudged | SweepOutcome,
    *,
    to: str | None = None,
    name: str | None = None,
    step: int = 0,
    pictures: bool = True,
    redact: bool = False,
    redact_key: str | None = None,
    **settings: object,
) -> str:
    """Send scores, pictures, texts and, except to TensorBoard, files to an experiment tracker.

    Personal data leaves this machine if the tracker is on another one: pictures show training data,
    and results.json contains recovered labels, paths and the command. ``redact=True`` sends neither
    images, labels, notes nor paths, and renumbers the nodes.

    Args:
        tracker: "tensorboard", "mlflow" or "wandb"; the extra of the same name installs it.
        run: A folder of results, results.json, or what `audit`, `check` or `sweep` returned, which
            is sent without pictures.
        to: For TensorBoard a folder, for MLflow the URI of the tracking store, for wandb a project.
            Without it, MLflow and wandb use the active run if there is one.
        name: Name of a new run in the tracker.
        step: Step of the metrics, such as the number of a training round.
        pictures: Whether to send images.
        redact: Whether to send redacted results only.
        redact_key: Redact; results with the same secret key use the same node numbers.
        **settings: Arguments of ``SummaryWriter``, of ``wandb.init``, or for MLflow ``experiment``
            and those of ``MlflowClient.create_run``.

    Returns:
        The folder, or the id of the run in the tracker.

    Raises:
        LeakauditError: There is no such tracker or its package, or the results cannot be used.
    """
    from leakaudit.reporting import trackers
    from leakaudit.reporting.results import record_file
    from leakaudit.reporting.trackers import content

    folder = None
    if isinstance(run, str | os.PathLike):
        source = file_of(run)
        folder = source.parent
        results = record_file.read(source)
    else:
        results = _values_of(run)
    selected = content.gather(
        results,
        folder,
        pictures=pictures,
        redact=redact or redact_key is not None,
        key=redact_key,
    )
    return trackers.send(tracker, selected, to=to, name=name, step=step, settings=settings)


def _values_of(run: Record | GateJudged | SweepOutcome) -> dict[str, Json]:
    """Return results that are in memory as JSON values."""
    from leakaudit.core.errors import LeakauditError
    from leakaudit.judging.gate import record as gate_record
    from leakaudit.judging.gate.judge import GateResults
    from leakaudit.reporting.results import model
    from leakaudit.runs.sweeping.run import SweepOutcome

    if isinstance(run, GateResults):
        return model.plain(gate_record.build(run))
    found = run.record if isinstance(run, SweepOutcome) else run
    if isinstance(found, model.RunRecord | model.SweepRecord):
        return model.plain(found)
    raise LeakauditError(
        "run: expected a folder of results, results.json, or the result of la.audit, la.check or "
        f"a completed la.sweep, got {type(run).__name__}"
    )


def file_of(results: File) -> Path:
    """Return the path of results.json."""
    path = Path(results)
    if path.is_dir():
        return path / RECORD
    return path


def _renderer(
    name: str, table: str | None, figure_width: str | float | None
) -> Callable[..., str | bytes]:
    """Return the function that renders a record in a format, with the options of that format."""
    from leakaudit.core import registry
    from leakaudit.core.errors import LeakauditError

    render: Callable[..., str | bytes] = registry.get("reports", name)
    if table is not None and name not in TABLES:
        raise LeakauditError(f"--table goes with {', '.join(TABLES)}, not with {name}; omit it")
    if figure_width is not None and name not in FIGURES:
        raise LeakauditError(f"--width goes with {', '.join(FIGURES)}, not with {name}; omit it")
    if table is not None:
        return partial(render, table=table)
    if figure_width is not None:
        return partial(render, figure_width=figure_width)
    return render
