"""`leakaudit attack`: reconstruct training inputs from a trace."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.cli._options import say, settings, shared, trust
from leakaudit.cli.listen import listener, listening
from leakaudit.cli.record import pairs

if TYPE_CHECKING:
    from leakaudit.pipeline.attack_run import AttackOptions

INTERRUPTED = 130


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "attack",
        help=(
            "reconstruct training inputs from a trace: the strongest attack that fits, pictures, "
            "results.json"
        ),
    )
    sub.add_argument("trace", type=Path, help="trace file or folder")
    sub.add_argument(
        "--truth",
        default="auto",
        metavar="FILE",
        help="truth to score against: a file, auto (beside the trace) or none",
    )
    listening(sub)
    sub.add_argument(
        "--node", type=int, action="append", help="node to attack; repeatable (default all)"
    )
    sub.add_argument(
        "--attack",
        default="auto",
        metavar="NAME",
        help="see 'leakaudit list attacks' (default auto: the strongest that fits)",
    )
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a hyper-parameter of the attack; repeatable",
    )
    sub.add_argument(
        "--gradients",
        type=int,
        metavar="N",
        help="gradients used at most (default: what 512 MB hold, at most 128)",
    )
    sub.add_argument(
        "-f",
        "--format",
        action="append",
        metavar="FORMAT",
        help="what goes to stdout: text (default), json, markdown; repeatable",
    )
    sub.add_argument(
        "--trust-model",
        action="store_true",
        help="allow a trace's package.module:factory to run that code",
    )
    sub.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that was cut short in the same output folder",
    )
    sub.add_argument(
        "--dry-run", action="store_true", help="say what would be attacked with what, and stop"
    )
    shared(sub, "seed", "device", "threads", "output", "lpips_weights", "max_seconds")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Attack, write the results, print them; 130 where interrupted.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit import registry
    from leakaudit.pipeline.attack_run import AttackOptions, attack_file
    from leakaudit.rendering import console

    chosen = settings(args)
    renderers = {name: registry.get("reports", name) for name in args.format or ["text"]}
    options = AttackOptions(
        adversary=listener(args),
        nodes=None if args.node is None else tuple(args.node),
        attack=args.attack,
        settings=pairs(args.set),
        rounds=args.gradients,
        truth=args.truth,
        lpips_weights=chosen.lpips_weights,
        seed=chosen.seed,
        device=chosen.device,
        max_seconds=chosen.max_seconds,
        trusted=trust(args.trust_model),
        resume=args.resume,
    )
    if args.dry_run:
        sys.stdout.write(json.dumps(_dry(args.trace, options), indent=2) + "\n")
        return 0
    folder = Path(chosen.output)
    with console.shown(chosen.progress):
        done = attack_file(args.trace, folder, options)
    for name in args.format or ["text"]:
        _show(name, renderers[name], done.results)
    say(
        f"{folder}: results.json, report.md"
        + (f", {done.results['picture']}" if done.results["picture"] else ""),
        args,
    )
    return INTERRUPTED if done.interrupted else 0


def _show(name: str, render: Callable[..., str], results: dict[str, Any]) -> None:
    """Write one rendering to stdout; the table takes a terminal's width and colours."""
    from leakaudit.rendering import console

    fit: console.Form = {}
    if name == "text":
        fit = console.fit()
    sys.stdout.write(render(results, **fit).rstrip("\n") + "\n")


def _dry(path: Path, options: AttackOptions) -> dict[str, Any]:
    """Return each node's leak and the attacks that would read it, in order."""
    from leakaudit.extraction import hearing
    from leakaudit.inversion import attacking
    from leakaudit.tasks.task import Task
    from leakaudit.traces import trace_file

    trace = trace_file.load(path)
    task = Task.build(trace.task, trusted=options.trusted)
    leaks = hearing.leaks(trace, options.adversary, options.nodes, options.rounds)
    known = [(name, a) for name, a in attacking.in_order() if options.attack in ("auto", name)]
    plan = {
        leak.node: {
            "leak": leak.kind,
            "rows": len(leak.value),
            "attacks": {n: a.refuses(leak, task) or a.cost for n, a in known},
        }
        for leak in leaks
    }
    return {"nodes": plan, "undetermined": dict(leaks.undetermined)}
