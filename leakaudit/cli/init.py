"""`leakaudit init`: write a first configuration of the gate and a first baseline."""

from __future__ import annotations

from pathlib import Path

from leakaudit._util.config import inline
from leakaudit._util.plural import counted
from leakaudit.cli._commands import SharedOptions, command, option
from leakaudit.cli._options import say, settings
from leakaudit.core.errors import LeakauditError

SCENARIO = """\
# A scenario of 'leakaudit record'. Replace it by your own program: run = "module:function".
[check.main.scenario]
victim = "dpsgd"                   # a protocol, see 'leakaudit list victims'
nodes = 4
graph = "ring"
rounds = 10
data = "faces"
model = "logistic"
# constants of the protocol and arguments of the model
set = { order = "adapt", noise = "message", sigma = 0.2 }"""

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
    scenario: Path | None = option(
        "scenario file to use instead of your program (default: a small example)", metavar="FILE"
    )
    no_baseline: bool = option("do not run the checks to measure a baseline")


@command(
    "init",
    "write a first leakaudit.toml and a first baseline for 'check'",
    "Sets up the gate: writes a commented leakaudit.toml, its JSON schema for editors, and "
    "a first baseline. Existing files are never overwritten.",
    "leakaudit init",
    "leakaudit init --run train:record --no-baseline",
)
def run(args: _Options) -> int:
    """Write the configuration, validate it, and measure the baseline."""
    from leakaudit.judging.gate import files, judge
    from leakaudit.reporting.rendering import console

    if args.function and args.scenario:
        raise LeakauditError("expected --run or --scenario, got both; remove one of them")
    chosen = settings(args)
    path = Path("leakaudit.toml")
    files.starter(path, starter(args.function, args.scenario))
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
    say(f"{cells}; commit all three files, then run 'leakaudit check'", args)
    return 0


def starter(function: str | None, scenario: Path | None) -> str:
    """Return a first configuration, for a function, a scenario file, or an example."""
    if function:
        return STARTER.format(program=f"run = {inline(function)}\n", scenario="")
    if scenario:
        return STARTER.format(program=f"scenario = {inline(str(scenario))}\n", scenario="")
    return STARTER.format(program="", scenario=f"\n{SCENARIO}\n")
