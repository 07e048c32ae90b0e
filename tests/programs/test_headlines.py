"""Attack, bound and lint of thirteen programs with shuffled records: no headline says more or less
than the program's own log of batches supports.

``LEAKAUDIT_FRESH_SEED`` draws other records and orders.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tapping import Run, leakaudit, tapped, torchrun
from torch import Tensor

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
RANKS = 3
NAMED = ("--model", "mlp", "--set", "hidden=32", "--shape", "1,8,8", "--classes", "4")
OF_NVFLARE = (
    *("--model", "mlp", "--set", "hidden=64", "--set", "act=sigmoid"),
    *("--shape", "1,25,25", "--classes", "2"),
)
GRADIENTS = {"payload": '"gradients"', "protocol": '"fedsgd"'}
SGD = {"optimiser": '"sgd"', "alpha": "0.05"}
CLIENTS = {"lr": "0.05", "epochs": "1  # with steps = 1, as below", "batch": "0"}
# What a user who knows the program enters where the description says NOT KNOWN.
PROGRAMS: dict[tuple[str, ...], dict[str, str]] = {
    ("ddp",): {},
    ("ddp", "--optimiser", "momentum"): {},
    ("ddp", "--optimiser", "adam", "--lr", "0.001"): {},
    ("fsdp2",): {},
    ("reduce",): GRADIENTS,
    ("fedsgd",): GRADIENTS,
    ("ring",): {**SGD, "order": '"combine"'},
    ("adapt",): {**SGD, "order": '"adapt"'},
    ("fedavg",): CLIENTS,
    ("ecl",): {"alpha": "0.05", "rho": "0.4"},
    ("tracking",): {},
    ("diloco",): {},
    ("nvflare",): CLIENTS,
}
NOT_NAMED = ("tracking", "diloco")  # several messages or steps in a round: nothing is said


def described(seen: Run, options: tuple[str, ...], batch: int) -> bool:
    """Write the trace that a user gets who fills in the description; False if it stays open."""
    named = OF_NVFLARE if options == ("nvflare",) else NAMED
    leakaudit(seen.folder, "tap", "describe", "trace.tap", *named, "-o", "mine.toml")
    text = (seen.folder / "mine.toml").read_text()
    for name, value in PROGRAMS[options].items():
        text = text.replace(f'\n{name} = "NOT KNOWN"', f"\n{name} = {value}")
    if PROGRAMS[options] is CLIENTS and "\nsteps = " not in text:
        text = text.replace("\nbatch = 0", f"\nsteps = 1\nbatch = {batch}")
    elif "\nbatch = " not in text:
        text = text.replace("[params]", f"[params]\nbatch = {batch}", 1)
    if "\nlevels = " not in text:
        text = re.sub(r"(\nclasses = \d+)", r"\1\nlevels = 255", text)
    (seen.folder / "mine.toml").write_text(text)
    if "NOT KNOWN" in re.sub(r"#.*", "", text):
        return False
    words = ("tap", "merge", "trace.tap", "--describe", "mine.toml", "-o", "mine.pt")
    leakaudit(seen.folder, *words)
    return True


def command(options: tuple[str, ...], *words: str) -> tuple[str, ...]:
    """The command that starts a program."""
    if options == ("nvflare",):
        pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")
        return (sys.executable, str(HERE / "nvflare_batches.py"), *words)
    return torchrun(HERE / "drawing.py", "--send", *options, *words, ranks=RANKS)


def used(seen: Run) -> list[Tensor]:
    """The pictures that each rank's own log says it used, without those that used none."""
    found: list[Tensor] = []
    for rank in range(RANKS):
        kept = seen.kept(rank)
        if "used" in kept:
            found.append(kept["x"][kept["used"].flatten().unique()])
    return found


def certified(seen: Run, results: dict[str, Any], own: list[Tensor]) -> int:
    """Count the inputs that are called exact; each is one that this node's program used."""
    total = 0
    with np.load(seen.folder / "out" / "reconstructions.npz") as stored:
        for finding in results["findings"]:
            count = finding.get("certified", 0)
            if not count:
                assert finding["certificate"]["name"] != "EXACT"
                continue
            exact = torch.tensor(stored[finding["images"]["x"]][:count]).float()
            assert len(exact.flatten(1).unique(dim=0)) == count
            for x in exact:
                assert any(torch.equal(x, one) for one in own[finding["node"]])
            total += count
    return total


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("options", PROGRAMS, ids="-".join)
def test_headlines_are_those_of_the_programs_own_log(
    tmp_path: Path, fresh_seed: int, options: tuple[str, ...], batch: int
) -> None:
    started = command(options, "--batch", str(batch), "--seed", str(fresh_seed))
    seen = tapped(tmp_path, *started)
    if not described(seen, options, batch):
        assert options[0] in NOT_NAMED
        assert seen.code == 3
        assert not (tmp_path / "trace.pt").exists()
        return
    own = used(seen)
    words = ("attack", "mine.pt", "--truth", "none", "-o", "out", "-q")
    done = leakaudit(tmp_path, *words, check=False)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    headline = results["summary"]
    exact = certified(seen, results, own)
    assert exact or done.returncode == 3, done.stderr  # nothing proven: inconclusive
    if batch == 1:
        # At most the last gradient of a node stays open, and an order of its own repeats none.
        assert exact >= sum(len(one) - 1 for one in own)
    said = re.search(r"recovered (\d+) (?:different )?input images? exactly", headline)
    assert (int(said[1]) if said else 0) == exact, headline
    assert exact or "is proven" in headline or "Nothing" in headline or "nothing" in headline
    assert " all " not in headline
    for finding in results["findings"]:
        assert finding["batch"] == batch
    # Sums alone do not say which model the ranks continue from: FedSGD's models are missing.
    code = 3 if options == ("reduce",) else 0
    priced = leakaudit(tmp_path, "bound", "mine.pt", "-f", "json", "-q", check=False)
    assert priced.returncode == code, priced.stderr
    views = json.loads(priced.stdout)
    assert views
    for view in views:  # the program adds no noise
        assert view["mu"] in ("inf", None), view
        assert view["epsilon"] in ("inf", None), view
    lint = leakaudit(tmp_path, "trace", "lint", "mine.pt", "--strict", "-q", check=False)
    assert lint.returncode == code, lint.stdout
    assert code == 0 or "not determined, because messages are missing" in lint.stdout
