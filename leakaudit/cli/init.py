"""`leakaudit init`: a first configuration of the gate, commented, and a first baseline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from leakaudit._util.config import inline
from leakaudit.cli._options import say, settings, shared
from leakaudit.errors import LeakauditError

SCENARIO = """\
# As 'leakaudit record' takes it; put your own program in its place with run = "module:function".
[check.main.scenario]
victim = "dpsgd"                   # a protocol, see 'leakaudit list victims'
nodes = 4
graph = "ring"
rounds = 10
data = "faces"
model = "logistic"
# constants of the protocol and arguments of the model
set = { order = "adapt", noise = "message", sigma = 0.2 }"""

SCHEMA = "leakaudit.schema.json"  # beside the configuration, so that editors need no network
STARTER = """\
#:schema ./leakaudit.schema.json
# The line above is for editors; 'leakaudit config schema' prints that file anew after an upgrade.

# The gate of 'leakaudit check': what an attack may get out of this training program.
# A pass means that these attacks stayed within these limits; it is no proof of privacy.

[gate]
seeds = 16                  # runs of every check; the least p-value of a comparison is 2^-seeds
alpha = 0.01                       # chance of one false regression in a whole run
baseline = "leakage-baseline.json" # what was accepted last; "" for budgets alone
# compare = ["gain", "exact", "identified", "labels"]   # measures that may not grow
# [gate.tolerance]                 # growth that is none
# gain = 1.0                       # dB

[check.main]                       # one table a program under test
{program}adversaries = ["eavesdropper"]     # also node:3, nodes:3,5, edges:0-1,1-0, joined by '+'
attacks = ["exact"]         # see 'leakaudit list attacks'; name those that fit your model and batch
# nodes = [0, 1]                   # whose inputs (default all that the adversary does not hold)
# lint = "error"            # where a recording refutes what it declares; or strict, warn, off
# [check.main.set.exact]           # hyper-parameters of one attack
# visits = 2
{scenario}
[[budget]]    # the last budget that fits a cell (check/adversary/attack) and measure holds
measure = "exact"           # gain, psnr, ssim, recovered, exact, identified, labels or epsilon
most = 0.0                         # no record bit for bit
# cells = "main/*"
# level = "error"                  # or warn, off
# aggregate = "worst"              # over seeds: worst, p95 or mean

[[budget]]
measure = "psnr"
most = 25.0

# [[accept]]                       # a finding that somebody answers for until a date
# id = "labels-2030"
# cells = "main/*/labels"
# measure = "labels"
# reason = "labels are public in this product"
# owner = "privacy@example.org"
# expires = 2030-06-30
"""


def add(verbs: Any) -> None:
    """Describe the verb.

    Args:
        verbs: The subparsers of `leakaudit`.
    """
    sub = verbs.add_parser(
        "init", help="write a commented leakaudit.toml for 'check', and a first baseline"
    )
    sub.add_argument(
        "--run",
        metavar="MODULE:FUNCTION",
        dest="function",
        help="your program: called with a seed and the path of the trace",
    )
    sub.add_argument(
        "--scenario",
        type=Path,
        metavar="FILE",
        help="a scenario file in its place (default: a small one to start from)",
    )
    sub.add_argument("--no-baseline", action="store_true", help="write the configuration alone")
    shared(sub, "seed", "threads", "max_seconds")
    sub.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the configuration, check it, run it once for the baseline.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    from leakaudit.gate import files, judge
    from leakaudit.rendering import console

    if args.function and args.scenario:
        raise LeakauditError("--run and --scenario name the program under test; give one of both")
    chosen = settings(args)
    path = Path("leakaudit.toml")
    files.starter(path, starter(args.function, args.scenario))
    try:
        gate = files.configured(Path())
        judge.validate(gate)
    except LeakauditError:
        path.unlink()
        raise
    files.schema(Path(SCHEMA))
    say(f"{path}: written; read it and set the budgets", args)
    if args.no_baseline:
        return 0
    beside = gate.baseline_path
    if beside is not None and beside.exists():
        raise LeakauditError(
            f"{beside} is there already; 'leakaudit baseline update --reason TEXT' changes it"
        )
    with console.shown(chosen.progress, chosen.max_seconds):
        judged, _, _ = files.update(gate, judge.Options(chosen.seed), "first baseline")
    cells = f"{gate.baseline_path}: written, {len(judged.cells)} cells"
    say(f"{cells}; commit all three files, then run 'leakaudit check'", args)
    return 0


def starter(function: str | None, scenario: Path | None) -> str:
    """Return the text of a first configuration.

    Args:
        function: The program under test, ``module:function``; None if a scenario is.
        scenario: The scenario file under test; with neither, a scenario stands in the text.

    Returns:
        The text of leakaudit.toml.
    """
    if function:
        return STARTER.format(program=f"run = {inline(function)}\n", scenario="")
    if scenario:
        return STARTER.format(program=f"scenario = {inline(str(scenario))}\n", scenario="")
    return STARTER.format(program="", scenario=f"\n{SCENARIO}\n")
