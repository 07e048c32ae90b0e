"""`leakaudit init`: write a first configuration of the gate and a first baseline."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from leakaudit._util.config import inline
from leakaudit._util.plural import counted
from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import INCONCLUSIVE, say, settings
from leakaudit.core.errors import LeakauditError

SCENARIO = """\
# A bundled protocol, and nothing of this repository. Replace it by your own program:
# run = "module:function", or tap = "torchrun … train.py".
[check.main.scenario]
victim = "dpsgd"                   # a protocol, see 'leakaudit list victims'
nodes = 4
graph = "ring"
rounds = 10
data = "faces"
model = "logistic"
# constants of the protocol and arguments of the model
set = { order = "adapt", noise = "message", sigma = 0.2 }"""

DESCRIPTION = "tap.toml"  # of the messages of a tapped program
SCHEMA = "leakaudit.schema.json"  # beside the configuration, so that editors work offline
STARTER = """\
#:schema ./leakaudit.schema.json
# The line above is for editors; after an upgrade, 'leakaudit config schema' prints that file.

# Configuration of 'leakaudit check': how much attacks may learn from this training program.
# A pass means that these attacks stayed within these limits. It does not prove privacy.

[gate]
seeds = 16                  # runs per check; the smallest p-value of a comparison is 2^-seeds
alpha = 0.001                      # probability of any false regression in a run
baseline = "leakage-baseline.json" # accepted leakage; "" to use budgets only
# compare = ["gain", "exact", "identified", "labels"]   # measures that must not increase
# [gate.tolerance]                 # increase that is ignored
# gain = 1.0                       # dB

[check.main]                       # one table per program under test
{program}adversaries = ["eavesdropper"]     # or node:3, nodes:3,5, edges:0-1,1-0, joined by '+'
attacks = ["exact"]         # see 'leakaudit list attacks'; choose those that suit your model
# nodes = [0, 1]                   # nodes to attack (default: all honest nodes)
# lint = "error"            # if a recording contradicts its declarations; or strict, warn, off
# [check.main.set.exact]           # hyper-parameters of one attack
# visits = 2
{scenario}
[[budget]]    # the last matching budget of a cell (check/adversary/attack) and measure applies
measure = "recovered"       # 1 - |found - true| / |true| of the best record
most = 0.9                         # no record comes back to a tenth of its norm
# cells = "main/*"
# level = "error"                  # or warn, off
# aggregate = "worst"              # over seeds: worst, p95 or mean

[[budget]]
measure = "gain"            # how much closer than a blind guess, in dB
most = 20.0

# [[budget]]
# measure = "exact"                # images also have exact, psnr and ssim
# most = 0.0                       # others: identified, labels, epsilon

# [[accept]]                       # a finding that is accepted until a date
# id = "labels-2030"
# cells = "main/*/labels"
# measure = "labels"
# reason = "labels are public in this product"
# owner = "privacy@example.org"
# expires = 2030-06-30
"""


class _Options(SharedOptions):
    settings = ("seed", "threads", "max_seconds")

    function: str | None = option(
        "your program: a function that takes a seed and the path of the trace to write",
        "--run",
        metavar="MODULE:FUNCTION",
    )
    tap: str | None = option(
        "your program: a command that runs under the tap, such as 'torchrun --nproc-per-node 2 "
        "train.py --seed {seed}'; it is run once, to describe its messages in tap.toml",
        metavar="COMMAND",
    )
    truth: str | None = option(
        "with --tap: file .npz with the records x, y, node of all nodes, which the program may "
        "write (default: records.npz)",
        metavar="FILE",
    )
    scenario: Path | None = option("scenario file to use instead of a program", metavar="FILE")
    example: bool = option("use a bundled example instead of a program")
    no_baseline: bool = option("do not run the checks to measure a baseline")


@command(
    "init",
    "write a first leakaudit.toml and a first baseline for 'check'",
    "Sets up the gate: writes a commented leakaudit.toml, its JSON schema for editors, and "
    "a first baseline. Existing files are never overwritten.",
    "leakaudit init --run train:record --no-baseline",
    "leakaudit init --tap 'torchrun --nproc-per-node 2 train.py'",
    "leakaudit init --example",
)
def run(args: _Options) -> int:
    """Write the configuration, validate it, and measure the baseline."""
    from leakaudit.judging.gate import files, judge
    from leakaudit.reporting.rendering import console

    _check(args)
    chosen = settings(args)
    path = Path("leakaudit.toml")
    files.absent(path)
    missing = ""
    if args.tap:
        text, missing = _tapped(args, chosen)
    else:
        text = starter(args.function, args.scenario)
    files.starter(path, text)
    try:
        gate = files.configured(Path())
        judge.validate(gate)
    except LeakauditError:
        path.unlink()
        raise
    if not files.schema(Path(SCHEMA)):
        advice = "'leakaudit config schema' prints the current schema"
        say(f"{SCHEMA}: kept, although it differs from the current schema; {advice}", args)
    say(f"{path}: written; read it and set the budgets", args)
    if missing:
        then = "leakaudit check --update --reason 'first baseline'"
        say(f"{DESCRIPTION}: {missing}; complete it, then: {then}", args)
        return INCONCLUSIVE
    if args.no_baseline:
        return 0
    beside = gate.baseline_path
    if beside is not None and beside.exists():
        raise LeakauditError(
            f"{beside} exists already; use 'leakaudit check --update --reason TEXT' to change it"
        )
    with console.shown(chosen.progress, chosen.max_seconds, main="runs"):
        judged, _, _ = files.update(gate, chosen.seed, "first baseline")
    cells = f"{gate.baseline_path}: written, {counted(len(judged.cells), 'cell')}"
    say(f"{cells}; commit these files, then run 'leakaudit check'", args)
    return 0


def _check(args: _Options) -> None:
    given = (args.function, args.tap, args.scenario, args.example)
    if sum(map(bool, given)) != 1:
        raise LeakauditError(
            "expected one of --run MODULE:FUNCTION, --tap COMMAND and --scenario FILE, which say "
            "what is checked, or --example, which checks a bundled protocol and nothing of yours"
        )
    if args.truth and not args.tap:
        raise LeakauditError("--truth: expected only with --tap")


def _tapped(args: _Options, chosen: argparse.Namespace) -> tuple[str, str]:
    """Run a command once, and describe its messages unless they are described already.

    Returns the configuration, and what the description lacks.
    """
    from leakaudit.judging.gate import files, tapped
    from leakaudit.judging.gate.config import Check

    written = Check("main", tap=args.tap or "", truth=args.truth or "records.npz")
    described = Path(DESCRIPTION)
    if described.exists():
        written = replace(written, describe=DESCRIPTION)
    first = tapped.first(written, Path(), chosen.seed)
    if not written.describe:
        files.starter(described, first.toml)
        say(f"{described}: written: {first.said}", args)
    lines: dict[str, object] = {"tap": written.tap, "describe": DESCRIPTION, "truth": written.truth}
    if first.rounds:
        lines["rounds"] = first.rounds
    program = "".join(f"{name} = {inline(value)}\n" for name, value in lines.items())
    text = STARTER.format(program=program, scenario="")
    return text, "" if first.rounds else first.said


def starter(function: str | None, scenario: Path | None) -> str:
    """Return a first configuration, for a function, a scenario file, or an example."""
    if function:
        return STARTER.format(program=f"run = {inline(function)}\n", scenario="")
    if scenario:
        return STARTER.format(program=f"scenario = {inline(str(scenario))}\n", scenario="")
    return STARTER.format(program="", scenario=f"\n{SCENARIO}\n")
