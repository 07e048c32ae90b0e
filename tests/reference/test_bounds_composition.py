"""Composition is written once: over every kind, n-fold equals n times, in any order, and agrees with closed forms and dp-accounting."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import gaussian, pld, renyi, zcdp
from leakaudit.theory.bounds.approximate import Approximate, approximate
from leakaudit.theory.bounds.composition import KINDS, TRANSLATIONS, compose, repeat, translate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee
from leakaudit.theory.bounds.losses import Losses
from leakaudit.theory.bounds.pld import Pld
from leakaudit.theory.bounds.releases import Escaping
from leakaudit.theory.bounds.renyi import ORDERS, Rdp
from leakaudit.theory.bounds.zcdp import Zcdp

ONE, OTHER = Adjacency.ADD_REMOVE, Adjacency.REPLACE
MAKE: dict[type[Guarantee], Callable[[], Guarantee]] = {
    Gdp: lambda: Gdp(0.3, ONE),
    Zcdp: lambda: Zcdp(0.045, ONE),
    Rdp: lambda: Rdp(tuple(0.045 * a for a in ORDERS), ONE),
    Approximate: lambda: approximate(0.2, 1e-6, ONE),
    Pld: lambda: pld.gaussian(0.3, ONE),
}
CLOSED: dict[type[Guarantee], Callable[[int, float], float]] = {
    Gdp: lambda n, e: gaussian.delta(e, 0.3 * math.sqrt(n)),
    Zcdp: lambda n, e: zcdp.delta(e, 0.045 * n),
    Rdp: lambda n, e: min(converted(e, a, 0.045 * a * n) for a in ORDERS),
    Approximate: lambda n, e: homogeneous(0.2, 1e-6, n, e),
    Pld: lambda n, e: gaussian.delta(e, 0.3 * math.sqrt(n)),
}


def converted(eps: float, a: float, r: float) -> float:
    """Canonne, Kamath, Steinke 2020, Proposition 12, at one order."""
    tail = math.exp(min(700, (a - 1) * (r - eps)) + (a - 1) * math.log1p(-1 / a))
    return min(1.0, tail / a)


def homogeneous(eps: float, delta: float, n: int, at: float) -> float:
    """Kairouz, Oh, Viswanath 2015, Theorem 3.3, by a plain sum over the number of ups."""
    p = math.exp(eps) / (1 + math.exp(eps))
    rest = sum(
        binom.pmf(i, n, p) * max(0.0, 1 - math.exp(at - (2 * i - n) * eps)) for i in range(n + 1)
    )
    return float(1 - (1 - delta) ** n * (1 - rest))


def needs(kind: type[Guarantee]) -> None:
    if kind is Pld:
        pytest.importorskip("dp_accounting")


def test_every_kind_of_guarantee_is_registered() -> None:
    composed = {Losses, Escaping}  # of many releases already
    assert set(KINDS) == set(Guarantee.__subclasses__()) - composed == set(MAKE) == set(CLOSED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_n_fold_equals_n_times(kind: type[Guarantee], n: int) -> None:
    needs(kind)
    one = MAKE[kind]()
    total, folded = repeat(one, n), compose([one] * n)
    for eps in (0.0, 0.4, 1.3):
        wanted = CLOSED[kind](n, eps)
        assert total.delta(eps) == pytest.approx(folded.delta(eps), rel=1e-6)
        assert total.delta(eps) == pytest.approx(wanted, rel=1e-5, abs=1e-9)
    assert total.epsilon(1e-4) == pytest.approx(folded.epsilon(1e-4), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_its_inverse_and_its_power_agree(kind: type[Guarantee]) -> None:
    needs(kind)
    g = repeat(MAKE[kind](), 5)
    for delta in (1e-4, 1e-2, 0.1):
        eps = g.epsilon(delta)
        assert g.delta(eps) <= delta * (1 + 1e-9)
        assert eps == 0 or g.delta(eps * (1 - 1e-3)) > delta
    for a in (1e-3, 0.1, 0.6):
        power = g.power(a)
        assert a <= power <= 1
        assert all(power <= math.exp(e) * a + g.delta(e) + 1e-5 for e in np.linspace(0, 4, 21))
    assert g.power(0) == pytest.approx(g.delta(math.inf))
    assert g.power(1) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_refused(kind: type[Guarantee]) -> None:
    needs(kind)
    g = MAKE[kind]()
    mistakes: tuple[Callable[[], float], ...] = (
        lambda: g.delta(math.nan),
        lambda: g.delta(-1),
        lambda: g.epsilon(2),
        lambda: g.epsilon(math.nan),
        lambda: g.power(math.nan),
    )
    for wrong in mistakes:
        with pytest.raises(LeakauditError, match="expected"):
            wrong()
    assert g.epsilon(0) == (math.inf if g.delta(math.inf) > 0 or kind is not Approximate else 0.2)
    assert g.epsilon(1) == 0


def test_exact_is_tighter_than_zcdp_is_tighter_than_a_grid_of_orders() -> None:
    for n in (1, 10, 100):
        exact = repeat(Gdp(0.5, ONE), n)
        rho, rdp = translate(exact, Zcdp), translate(exact, Rdp)
        limits = [g.epsilon(1e-5) for g in (exact, rho, rdp)]
        assert limits == sorted(limits)
        powers = [g.power(0.05) for g in (exact, rho, rdp)]
        assert powers == sorted(powers)


def test_the_optimal_composition_of_different_epsilons() -> None:
    """Against a sum over all outcomes of the bits."""
    epsilons = [0.3, 0.5, 0.5, 0.9, 1.1]
    total = compose([approximate(e, 1e-4, ONE) for e in epsilons])
    for at in (0.0, 0.7, 2.0, 3.3):
        rest = 0.0
        for bits in range(1 << len(epsilons)):
            signs = [1 if bits >> k & 1 else -1 for k in range(len(epsilons))]
            p = math.prod(1 / (1 + math.exp(-s * e)) for s, e in zip(signs, epsilons, strict=True))
            rest += p * max(
                0.0, 1 - math.exp(at - sum(s * e for s, e in zip(signs, epsilons, strict=True)))
            )
        assert total.delta(at) == pytest.approx(1 - (1 - 1e-4) ** 5 * (1 - rest), rel=1e-12)


def test_many_different_epsilons_are_rounded_up_to_a_lattice() -> None:
    same = repeat(approximate(0.1, 0, ONE), 60)
    spread = compose([approximate(0.1 + k * 1e-12, 0, ONE) for k in range(60)])
    for at in (0.5, 1.5):
        assert same.delta(at) <= spread.delta(at) <= same.delta(at) * 1.05
    assert spread.delta(math.inf) == 0
    assert compose([spread, approximate(0, 1e-3, ONE)]).delta(math.inf) == pytest.approx(1e-3)


def test_a_claim_of_delta_one_or_epsilon_zero() -> None:
    assert approximate(0, 0, ONE).delta(0) == 0
    assert approximate(3, 1, ONE).delta(5) == 1
    assert approximate(800, 0, ONE).delta(0) == pytest.approx(1)
    assert approximate(800, 0, ONE).epsilon(0) == 800


def test_mixtures_go_into_a_kind_that_holds_both() -> None:
    mixed = compose([Gdp(0.5, ONE), approximate(0.1, 0, ONE)])
    assert mixed == Zcdp(0.125 + 0.005, ONE)
    finer = compose([Gdp(0.5, ONE), approximate(0.1, 0, ONE)], into=Rdp)
    assert finer.epsilon(1e-5) <= mixed.epsilon(1e-5) * 1.01
    assert type(compose([Zcdp(0.1, ONE), MAKE[Rdp]()])) is Rdp
    claims = [Zcdp(0.1, ONE), approximate(1, 1e-5, ONE)]
    for parts, text in (
        ([Gdp(1, ONE), Gdp(1, OTHER)], "one adjacency"),
        ([], "at least one"),
        (claims, "in common"),
    ):
        with pytest.raises(LeakauditError, match=text):
            compose(parts)
    with pytest.raises(LeakauditError, match="reads as Gdp"):
        compose([Zcdp(0.1, ONE)], into=Gdp)
    with pytest.raises(LeakauditError, match="at least one release"):
        repeat(Gdp(1, ONE), 0)
    with pytest.raises(LeakauditError, match="same Renyi orders"):
        compose([MAKE[Rdp](), Rdp((0.1,), ONE, (2.0,))])


def test_gaussian_noise_and_a_claim_of_delta_meet_in_a_privacy_loss_distribution() -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    common = pytest.importorskip("dp_accounting.pld.common")
    found = compose([Gdp(0.5, ONE), repeat(approximate(0.1, 1e-6, ONE), 3)])
    assert type(found) is Pld
    claim = library.from_privacy_parameters(common.DifferentialPrivacyParameters(0.1, 1e-6))
    theirs = library.from_gaussian_mechanism(2.0).compose(claim).compose(claim).compose(claim)
    assert found.epsilon(1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=1e-6)
    assert found.epsilon(1e-5) < compose(
        [Gdp(0.5, ONE), repeat(approximate(0.1, 0, ONE), 3)]
    ).epsilon(1e-5 - 3e-6)


@pytest.mark.parametrize(("old", "new"), list(TRANSLATIONS))
def test_a_translation_never_promises_more(old: type[Guarantee], new: type[Guarantee]) -> None:
    needs(new)
    one = repeat(approximate(0.7, 0, ONE), 3) if old is Approximate else MAKE[old]()
    put = translate(one, new)
    assert all(put.delta(e) >= one.delta(e) * (1 - 1e-9) for e in np.linspace(0, 3, 31))


def test_randomised_response_is_below_both_simple_bounds() -> None:
    for eps in (0.01, 0.5, 3.0, 900.0):
        for a in (1.1, 2.0, 30.0):
            value = renyi.randomised_response(eps, a)
            assert 0 <= value <= min(eps, a * eps * eps / 2) * (1 + 1e-12)
    p = 1 / (1 + math.exp(-0.7))
    assert renyi.randomised_response(0.7, 2) == pytest.approx(
        math.log(p**2 / (1 - p) + (1 - p) ** 2 / p)
    )


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(LeakauditError, match=r"^[^\n]*leakaudit\[pld\]'$"):
        pld.gaussian(1, ONE)


def test_against_dp_accounting() -> None:
    dp = pytest.importorskip("dp_accounting")
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    common = pytest.importorskip("dp_accounting.pld.common")
    for sigma, delta in ((1.0, 1e-5), (2.0, 1e-5), (4.0, 1e-6)):
        assert Gdp(1 / sigma, ONE).epsilon(delta) == pytest.approx(
            dp.get_epsilon_gaussian(sigma, delta), rel=1e-9
        )
    rdp = dp.rdp.RdpAccountant(list(ORDERS)).compose(dp.GaussianDpEvent(2.0), 10)
    assert repeat(translate(Gdp(0.5, ONE), Rdp), 10).epsilon(1e-5) == pytest.approx(
        rdp.get_epsilon(1e-5), rel=1e-9
    )
    for eps, delta, n in ((0.5, 1e-6, 5), (1.0, 1e-6, 4), (0.1, 0.0, 10)):
        theirs = library.from_privacy_parameters(
            common.DifferentialPrivacyParameters(eps, delta)
        ).self_compose(n)
        ours = repeat(approximate(eps, delta, ONE), n)
        for at in (0.0, 0.37, 1.2):
            assert ours.delta(at) == pytest.approx(
                theirs.get_delta_for_epsilon(at), rel=1e-9, abs=1e-13
            )
    step = pld.subsampled_gaussian(1.0, 0.1, ONE)
    assert repeat(step, 50).epsilon(1e-5) == pytest.approx(5.148, abs=1e-3)
    assert repeat(step, 50).epsilon(1e-5) == pytest.approx(
        step.distribution.self_compose(50).get_epsilon_for_delta(1e-5), rel=1e-6
    )
    assert repeat(pld.subsampled_gaussian(1.0, 0.1, OTHER), 5).epsilon(1e-5) > repeat(
        step, 5
    ).epsilon(1e-5)


def test_the_power_of_a_privacy_loss_distribution_is_that_of_its_curve() -> None:
    pytest.importorskip("dp_accounting")
    g = pld.gaussian(1.0, ONE)
    for a in (1e-9, 0.01, 0.1, 0.5, 0.97):
        assert (
            gaussian.power(a, 1.0) * (1 - 1e-9) <= g.power(a) <= gaussian.power(a, 1.0) * (1 + 1e-5)
        )


def test_what_has_no_privacy_loss_distribution_is_refused() -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(LeakauditError, match="NODE"):
        pld.subsampled_gaussian(1.0, 0.1, Adjacency.NODE)
    with pytest.raises(LeakauditError, match="sampling rate"):
        pld.subsampled_gaussian(1.0, 0.0, ONE)
    with pytest.raises(LeakauditError, match="mu"):
        pld.gaussian(math.inf, ONE)
