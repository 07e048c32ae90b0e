"""Power of an audit's canary replays to refute claims of mu and of (epsilon, delta).

    python bench/_canaries.py
    python bench/_canaries.py --replays 1000 --alpha .01

One row per claim: for each true mu of the run, the probability to refute the claim at level alpha.
A quarter of the replays selects the threshold; the rest is split evenly between both records. The
last column is the mu that is detected with probability .8.
"""

from __future__ import annotations

import argparse

from leakaudit.judging.auditing.evidence import PILOT, Canary, detects
from leakaudit.judging.auditing.promise import Promise
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.empirical import Counts
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency

DELTA = 1e-5
TRUE = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--replays",
        type=int,
        default=200,
        help="replays per audit, with either record (default 200)",
    )
    parser.add_argument("--alpha", type=float, default=0.05, help="level of the test (default .05)")
    asked = parser.parse_args()
    counted = asked.replays - int(PILOT * asked.replays)
    evidence = Canary(Counts(0, counted // 2, 0, counted - counted // 2))
    print("| claim | " + " | ".join(f"true mu {mu:g}" for mu in TRUE) + " | detects mu |")
    print("|---|" + "--:|" * (len(TRUE) + 1))
    for name, promise in promises():
        cells = [f"{evidence.power(promise, asked.alpha, mu):.2f}" for mu in TRUE]
        found = detects(evidence, promise, asked.alpha)
        least = "-" if found is None else f"{gaussian.least_mu(found, DELTA):.2f}"
        print(f"| {name} | " + " | ".join([*cells, least]) + " |", flush=True)


def promises() -> list[tuple[str, Promise]]:
    """Return the claims, with their names in the table."""
    found = [
        (
            f"mu {mu:g}",
            Promise("a view", gaussian.epsilon(DELTA, mu), DELTA, Gdp(mu, Adjacency.REPLACE)),
        )
        for mu in (0.3, 0.5, 1.0, 2.0)
    ]
    return found + [
        (f"epsilon {epsilon:g}", Promise("a claim", epsilon, DELTA))
        for epsilon in (0.5, 1.0, 2.0, 3.0, 4.38)
    ]


if __name__ == "__main__":
    main()
