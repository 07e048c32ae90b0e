"""`leakaudit attack`: reconstruct training inputs from a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from leakaudit.cli._commands import Options, SharedOptions, argument, command, option
from leakaudit.cli._options import (
    INCONCLUSIVE,
    INTERRUPTED,
    ComputeOptions,
    ListenerOptions,
    ModelOptions,
    expect_text,
    half_of_free,
    memory,
    numbers,
    say,
    settings,
    show_json,
    show_record,
    trusting,
)
from leakaudit.cli.record import pairs
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.core.trace import TaskSpec
    from leakaudit.runs.pipeline.attack_options import AttackOptions


OF_GRADIENT = "gradient.trace.pt"  # in the folder of the results


class _GradientOptions(Options):
    gradient: Path | None = option(
        "in place of a trace: a file with a gradient of --model at --weights, by parameter or in "
        "their order (.pt, .safetensors, .npz, .npy)",
        metavar="FILE",
    )
    weights: Path | None = option(
        "file with the weights at which it was computed; a state_dict, or in the order of the "
        "parameters",
        metavar="FILE",
    )
    after: Path | None = option(
        "in place of a gradient: the weights after one step of SGD", metavar="FILE"
    )
    lr: float | None = option("size of that step", metavar="LR")
    batch: int | None = option(
        "number of records of the gradient (default: not known)", metavar="N"
    )
    described: ModelOptions
    arg: list[str] = option("set an argument of the model; repeatable", metavar="NAME=VALUE")
    mean: str | None = option("the model sees (x - mean) / std: one number, or one a channel")
    std: str | None = option("see --mean")
    levels: int | None = option(
        "255 if inputs are pixels k/255 before --mean and --std, so that they can be exact",
        metavar="N",
    )

    def record(self, path: Path, truth: str) -> None:
        """Write the trace of the gradient."""
        from leakaudit.capture.gradient import GradientFiles
        from leakaudit.traces.recorder import Storage

        if self.weights is None:
            raise LeakauditError("--weights: expected the file of weights of the gradient's model")
        if self.batch is not None and self.batch < 1:
            raise LeakauditError(f"--batch: expected a number of records, got {self.batch}")
        records = None if truth in ("auto", "none") else Path(truth)
        files = GradientFiles(self.weights, self.gradient, self.after, self.lr, records)
        files.record(Storage(path), self._spec(), self.batch or 0)

    def _spec(self) -> TaskSpec:
        more: dict[str, Any] = {"levels": self.levels or 0}
        for name in ("mean", "std"):
            given = numbers(getattr(self, name), f"--{name}", float)
            if given is not None:
                more[name] = given
        spec = self.described.spec(pairs(self.arg, "--arg"), classes=0, **more)
        if spec is None:
            raise LeakauditError("--model: expected the model of the gradient")
        return spec


class _Options(SharedOptions):
    settings = ("seed", "device", "threads", "output", "lpips_weights", "max_seconds")

    trace: Path | None = argument("trace file, or folder of shards", nargs="?")
    truth: str = option(
        "truth file for scoring; auto uses the one beside the trace, none skips scoring; of a "
        "gradient, .npz with the records x and y",
        default="auto",
        metavar="FILE",
    )
    listener: ListenerOptions
    node: list[int] | None = option("node to attack; repeatable (default: all honest nodes)")
    attack: str = option(
        "attack to run, see 'leakaudit list attacks' (default auto: the strongest that applies)",
        default="auto",
        metavar="NAME",
        names="attacks",
    )
    set: list[str] = option("set a hyper-parameter of the attack; repeatable", metavar="NAME=VALUE")
    gradients: int | None = option(
        "maximum number of gradients per node (default: as many as fit in 512 MB, at most 128)",
        metavar="N",
    )
    max_memory: int | None = option(
        "memory for the gradients and models of a node and for the attack, e.g. 1GB; fewer "
        "gradients are used if not all fit (default: half of what is free)",
        metavar="BYTES",
        type=memory,
    )
    format: list[str] | None = option(
        "format of the output: text, json or markdown; repeatable (default text)",
        "-f",
        metavar="FORMAT",
        names="reports",
    )
    trust_model: bool | str = trusting("trace")
    resume: bool = option("continue an interrupted run in the same output folder")
    dry_run: bool = option(
        "print the leak of each node and the attacks that apply, without attacking"
    )
    computing: ComputeOptions
    one: _GradientOptions


@command(
    "attack",
    "reconstruct training inputs from a trace",
    "Reconstructs training inputs from the messages in a trace, with the strongest attack "
    "that applies. Writes pictures, report.md and results.json to a folder, and scores the "
    "reconstructions if the truth is available.",
    "leakaudit attack trace.pt -o out/",
    "leakaudit attack trace.pt --as node:3 --node 2 --attack exact -o out/",
    "leakaudit attack --gradient g.pt --weights w.pt --model my:net --shape 3,32,32",
)
def run(args: _Options) -> int:
    """Attack, write the results and print them; return 3 if they are not conclusive."""
    from leakaudit.runs.pipeline.attack_options import AttackOptions

    chosen = settings(args)
    for name in args.format or ():
        expect_text(name)
    options = AttackOptions(
        adversary=args.listener.parse(),
        nodes=None if args.node is None else tuple(args.node),
        attack=args.attack,
        settings=pairs(args.set),
        rounds=args.gradients,
        truth=args.truth,
        lpips_weights=chosen.lpips_weights,
        seed=chosen.seed,
        device=chosen.device,
        max_seconds=chosen.max_seconds,
        trusted=args.trust_model,
        resume=args.resume,
        max_memory=args.max_memory or half_of_free(),
    )
    if args.trace is None:
        return _of_gradient(args, options)
    args.one.refuse("expected without a trace, whose gradients are attacked")
    return _attack(args, args.trace, options)


def _of_gradient(args: _Options, options: AttackOptions) -> int:
    """Attack the trace of a gradient, which is kept beside the results."""
    if not (args.one.gradient or args.one.after):
        raise LeakauditError("expected a trace, or --gradient FILE with --weights and --model")
    if args.trust_model:
        raise LeakauditError("--trust-model: --model names the model that is executed")
    from leakaudit.reporting.results import output_folder
    from leakaudit.runs.pipeline import attack_run
    from leakaudit.traces import trace_file

    folder = Path(settings(args).output)
    options = replace(options, truth="auto", trusted=args.one.described.model or False)
    if args.dry_run:
        with TemporaryDirectory() as scratch:
            args.one.record(Path(scratch, OF_GRADIENT), args.truth)
            return _attack(args, Path(scratch, OF_GRADIENT), options)
    with (
        output_folder.ready(folder),
        TemporaryDirectory(prefix=".gradient-", dir=folder) as scratch,
    ):
        args.one.record(Path(scratch, OF_GRADIENT), args.truth)
        attack_run.check(Path(scratch, OF_GRADIENT), options)
        # Only now are the files of an earlier run replaced.
        for file in trace_file.belonging(folder / OF_GRADIENT):
            file.unlink(missing_ok=True)
        for file in Path(scratch).iterdir():
            file.replace(folder / file.name)
    code = _attack(args, folder / OF_GRADIENT, options)
    if code == INCONCLUSIVE and not args.one.batch:
        say(
            "the number of records is not stated; with --batch N, a result that is the only one "
            "of N records is proven",
            args,
        )
    return code


def _attack(args: _Options, trace: Path, options: AttackOptions) -> int:
    from leakaudit.reporting.findings import worst_case
    from leakaudit.reporting.rendering import console, passages
    from leakaudit.reporting.results import model
    from leakaudit.runs.pipeline.attack_run import attack_file

    chosen = settings(args)
    if args.dry_run:
        plan = _dry(trace, options)
        show_json(plan)
        return INCONCLUSIVE if plan["not_understood"] else 0
    folder = Path(chosen.output)
    executor = args.computing.executor()
    with console.shown(chosen.progress, main="nodes"):
        done = attack_file(trace, folder, options, executor)
    results = model.plain(done.record)
    shown = passages.with_passages(results, folder)
    for name in args.format or ["text"]:
        show_record(shown if name == "text" else results, name)
    picture = f", {done.record.picture}" if done.record.picture else ""
    say(f"{folder}: results.json, report.md{picture}", args)
    say(f"next: leakaudit report {folder} -o {folder / 'report.html'}", args)
    if done.interrupted:
        return INTERRUPTED
    return 0 if worst_case.conclusive(done.record) else INCONCLUSIVE


def _dry(path: Path, options: AttackOptions) -> dict[str, Any]:
    """Return the leak of each node, and the attacks that would be tried, in order."""
    from leakaudit.inversion import attacking
    from leakaudit.tasks.task import Task
    from leakaudit.traces import trace_file
    from leakaudit.views.extraction import hearing

    trace = trace_file.load(path)
    task = Task.build(trace.task, trusted=options.trusted)
    options = options.within(trace)
    leaks = hearing.leaks(
        trace,
        options.adversary,
        options.nodes,
        options.rounds,
        attacking.estimator(options.attack, options.settings),
    )
    known = [(name, a) for name, a in attacking.in_order() if options.attack in ("auto", name)]
    plan = {
        leak.node: {
            "leak": leak.kind,
            "rows": len(leak.value),
            **({"others": list(leak.others)} if leak.others else {}),
            "attacks": {n: a.refuses(leak, task) or a.cost for n, a in known},
        }
        for leak in leaks
    }
    return {
        "nodes": plan,
        "undetermined": dict(leaks.undetermined),
        "not_understood": sorted(leaks.not_understood),
    }
