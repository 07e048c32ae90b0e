"""Every recorded value of the bounds: none in bounds_vectors.txt is left out without a word.

The values were computed apart from this program: in arithmetic with 60 digits, by closed forms, and
with dp_accounting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakaudit.theory.bounds import (
    empirical,
    gaussian,
    mechanisms,
    mse,
    one_run,
    reconstruction,
)
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.composition import repeat, translate
from leakaudit.theory.bounds.empirical import Counts
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, greatest_power
from leakaudit.theory.bounds.pld import subsampled_gaussian
from leakaudit.theory.bounds.renyi import ORDERS, Rdp
from leakaudit.theory.bounds.zcdp import Zcdp

ONE = Adjacency.ADD_REMOVE
ELSEWHERE = (
    "gauss_delta",
    "gauss_eps",
    "gauss_sigma(",
    "gdp_",
    "rero_gdp",
)  # test_bounds_gaussian.py
VIEWS = ("gossip_", "linear_view_mu", "muffliato")  # exact views: test_bounds_views.py
LIBRARY = ("rero_mc_dpsgd",)  # the last test here
SAMPLED = {"zb joint beta (MC)": 3e-3, "zb joint beta (MC) MSR README counts, published .145": 3e-3}


def kov(eps: float, delta: float, k: int, i: int) -> Iterator[float]:
    total = repeat(approximate(eps, delta, ONE), k)
    yield (k - 2 * i) * eps
    yield total.delta((k - 2 * i) * eps)


def truncated(eps: float, delta: float) -> Iterator[float]:
    noise = mechanisms.truncated_laplace(eps, delta, 1.0)
    yield noise.width
    yield (noise.below(1e-7) - noise.below(-1e-7)) / 2e-7
    yield noise.delta(eps, 1.0)
    yield noise.escape([1.0])


def counted(tp: int, positives: int, fp: int, negatives: int) -> Iterator[float]:
    counts = Counts(tp, positives, fp, negatives)
    yield empirical.epsilon_lower(counts, 1e-5, 0.05)
    yield gaussian.epsilon(1e-5, empirical.mu_lower(counts, 0.05))
    yield empirical.mu_lower(counts, 0.05)
    yield empirical.credible_epsilon(counts, 1e-5, 0.05)


def with_ceiling(error: float) -> Iterator[float]:
    yield error
    yield mse.ceiling(error, 1.0)


def fil(d: int, sigma: float, times: int) -> Iterator[float]:
    yield from with_ceiling(mse.fisher(mse.fisher_trace(np.eye(d), sigma, times), d))


def hoelder(x: float, a: float, r: float) -> float:
    """Balle, Cherubin, Hayes 2022, reconstruction by RDP, at one order."""
    return math.exp(min((1 - 1 / a) * (r + math.log(x)), 0.0))


def zcdp_row(sigma: float, times: int) -> Iterator[float]:
    mu = math.sqrt(times) / sigma
    found = repeat(Zcdp(1 / (2 * sigma**2), ONE), times)
    delta = 1e-6 if sigma == 10 else 1e-5
    yield found.rho
    yield found.epsilon(delta)
    yield repeat(Gdp(1 / sigma, ONE), times).epsilon(delta)
    assert gaussian.epsilon(delta, mu) == pytest.approx(
        repeat(Gdp(1 / sigma, ONE), times).epsilon(delta)
    )


def rdp_row(sigma: float, times: int, delta: float) -> Iterator[float]:
    rdp = repeat(translate(Gdp(1 / sigma, ONE), Rdp), times)
    yield rdp.epsilon(delta)


def one_run_fdp(m: int, r: int, v: int) -> Iterator[float]:
    mu = one_run.mu_lower(m, r, v, 0.05)
    yield mu
    yield gaussian.epsilon(1e-5, mu)


NUMBER = r"([-\d.e]+)"
ROWS: list[tuple[str, Callable[..., Iterator[float]]]] = [
    (
        rf"gauss_sigma_classic\(eps={NUMBER},delta={NUMBER}\)",
        lambda e, d: iter([mechanisms.classic_std(e, d)]),
    ),
    (rf"zcdp rho \(sigma={NUMBER},T={NUMBER}\)", lambda s, t: zcdp_row(s, int(t))),
    (
        rf"rdp_eps cks +sigma={NUMBER} T={NUMBER} delta={NUMBER}",
        lambda s, t, d: rdp_row(s, int(t), d),
    ),
    (
        r"rdp_eps_cks\(alpha=8,r=.5,1e-5\)",
        lambda: iter([Rdp((0.5,), ONE, orders=(8.0,)).epsilon(1e-5)]),
    ),
    (
        rf"kov_optimal\(eps={NUMBER},delta={NUMBER},k={NUMBER}\)\[{NUMBER}\] eps",
        lambda e, d, k, i: kov(e, d, int(k), int(i)),
    ),
    (rf"trlap A\(eps={NUMBER},delta={NUMBER}\)", truncated),
    (
        rf"rero_eps_delta\(kappa={NUMBER},eps={NUMBER},delta={NUMBER}\)",
        lambda k, e, d: iter([reconstruction.success(approximate(e, d, ONE), k)]),
    ),
    (
        rf"rero_rdp best order kappa={NUMBER} gaussian mu={NUMBER}",
        lambda k, mu: iter([min(hoelder(k, a, a * mu * mu / 2) for a in ORDERS)]),
    ),
    (
        rf"rero_from_delta_curve\(kappa={NUMBER}, gdp mu={NUMBER}\)",
        lambda k, mu: iter([greatest_power(Gdp(mu, ONE).delta, k)]),
    ),
    (rf"mse_lb_rdp2\(eps2={NUMBER}\)", lambda e: with_ceiling(mse.hcr(e))),
    (
        rf"mse_lb_fil identity d={NUMBER} sigma={NUMBER} T={NUMBER}",
        lambda d, s, t: fil(int(d), s, int(t)),
    ),
    (
        rf"mse_lb_vantrees sigma={NUMBER} prior sd={NUMBER}",
        lambda s, tau: iter([mse.van_trees(1 / s**2, 1 / tau**2, 1)]),
    ),
    (rf"rmse_of_psnr\({NUMBER}\)", lambda p: iter([reconstruction.tolerance(p, 1.0)])),
    (
        rf"eps_lb_cp\({NUMBER}, {NUMBER}, {NUMBER}, {NUMBER}\) delta=1e-5 95%",
        lambda *c: counted(*map(int, c)),
    ),
    (
        r"eps_lb_cp MSR README counts TP487 FN0 FP512 TN1",
        lambda: iter([empirical.epsilon_lower(Counts(487, 487, 512, 513), 1e-5, 0.05, both=True)]),
    ),
    (
        r"zb joint beta \(MC\) MSR README counts, published .145",
        lambda: iter([empirical.credible_epsilon(Counts(487, 487, 512, 513), 1e-5, 0.05)]),
    ),
    (
        rf"eps_lb_one_run\(m={NUMBER},r={NUMBER},v={NUMBER},delta={NUMBER}\)",
        lambda m, r, v, d: iter([one_run.epsilon_lower(int(m), int(r), int(v), d, 0.05)]),
    ),
    (
        rf"mu_lb_one_run_fdp\(m={NUMBER},r={NUMBER},v={NUMBER}\)",
        lambda *c: one_run_fdp(*map(int, c)),
    ),
    (
        rf"success_lb\({NUMBER}/{NUMBER}\)",
        lambda k, n: iter([empirical.lower(int(k), int(n), 0.05)]),
    ),
]


def start(name: str) -> Iterator[float] | None:
    for pattern, made in ROWS:
        if match := re.fullmatch(pattern, name):
            return made(*(float(g) if re.fullmatch(NUMBER, g) else g for g in match.groups()))
    return None


def test_every_recorded_value() -> None:
    file = Path(__file__).with_name("bounds_vectors.txt")
    going: Any = None
    checked = 0
    for line in file.read_text(encoding="utf-8").splitlines():
        name, value = (
            re.fullmatch(r"(.*?) +([-\d.e]+|inf)(?:  OK)?", line).groups()  # type: ignore[union-attr]
            if ": " not in line
            else ("", "")
        )
        if (
            not name
            or name.startswith(VIEWS + LIBRARY)
            or (name.startswith(ELSEWHERE) and not name.startswith("gauss_sigma_classic"))
        ):
            continue
        going = going if name.startswith((" ", "zcdp_eps")) else start(name)
        assert going is not None, f"nothing computes {name!r}"
        close = next(
            (tolerance for key, tolerance in SAMPLED.items() if name.strip().startswith(key)), 0.0
        )
        assert next(going) == pytest.approx(float(value), rel=1e-6, abs=close), name
        checked += 1
    assert checked >= 110


@pytest.mark.parametrize(
    ("kappa", "rate", "noise", "times", "value"),
    [(0.1, 1.0, 10.0, 100, 0.3862397981), (0.1, 0.1, 1.0, 50, 0.3422369511)],
)
def test_the_sampled_success_against_dp_sgd(
    kappa: float, rate: float, noise: float, times: int, value: float
) -> None:
    """The recorded values are Monte Carlo of 50,000 draws; a certified distribution gives them without sampling."""
    pytest.importorskip("dp_accounting")
    certified = reconstruction.success(repeat(subsampled_gaussian(noise, rate, ONE), times), kappa)
    assert certified == pytest.approx(value, abs=4e-3)
