"""The two sentences that every report begins with: right, plain, and never more than is known."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from records import RECORDS, column, finding, record

from leakaudit.reporting.findings.overview import overview
from leakaudit.reporting.findings.worst_case import WorstCase, WorstOutcome, who, worst_case
from leakaudit.reporting.results import model
from leakaudit.reporting.results.audit_names import SENSITIVITY


def of(*found: dict[str, Any], **changes: Any) -> WorstCase:
    made = model.of_run(record(*found, **changes))
    return worst_case(made.findings, made.undetermined, made.trace.shape)


def batch(node: int, exact: list[bool], certified: int, **changes: Any) -> dict[str, Any]:
    """A finding with several records, the first `certified` of which are certified."""
    one = finding(node, certificate="EXACT" if certified == len(exact) else "APPROXIMATE")
    scores = {
        **one["scores"],
        "psnr": column(*(200.0 if same else 12.0 for same in exact)),
        "ssim": column(*(1.0 for _ in exact)),
        "exact": column(*exact),
        "identified": column(*exact),
        "matched": list(range(len(exact))),
    }
    return {**one, "batch": len(exact), "certified": certified, "scores": scores, **changes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eavesdropper", "An eavesdropper"),
        ("node:3", "Curious node 3"),
        ("nodes:3,5", "Curious nodes 3 and 5 together"),
        ("nodes:1,2,3", "Curious nodes 1, 2 and 3 together"),
        ("nodes:0,1,2,3,4,5", "6 curious nodes together"),
        ("edges:0-1", "An eavesdropper on channel 0-1"),
        ("edges:0-1,1-0", "An eavesdropper on channels 0-1 and 1-0"),
        ("edges:0-1,1-0,2-3", "An eavesdropper on 3 channels"),
        ("eavesdropper+node:1", "An eavesdropper with curious node 1"),
        ("<b>", 'The adversary "<b>"'),
    ],
)
def test_an_adversary_is_described_in_words(text: str, said: str) -> None:
    assert who(text) == said


def test_all_records_recovered_and_proven() -> None:
    case = of(batch(0, [True, True], 2), batch(1, [True, True], 2))
    assert case.says == "Curious node 3 recovered all 4 training images of nodes 0, 1 exactly."
    assert case.certainty.startswith("This is certain without seeing the originals")
    assert case.proven


def test_some_records_proven_and_some_only_compared() -> None:
    case = of(batch(0, [True, True, False], 1))
    assert case.says == "Curious node 3 recovered 2 of the 3 training images of node 0 exactly."
    assert case.certainty.startswith("1 of these results are certain without")
    assert not case.proven


def test_a_record_that_only_the_truth_shows_to_be_exact_is_not_called_certain() -> None:
    case = of(batch(0, [True], 0))
    assert "recovered the training image of node 0 exactly" in case.says
    assert "certain without" not in case.certainty
    assert "A comparison with the originals shows this" in case.certainty


def test_a_wrong_certificate_is_never_counted_as_exact() -> None:
    case = of(batch(0, [True, False], 2))
    assert "1 of the 2 training images" in case.says
    assert case.outcome is WorstOutcome.EXACT
    assert "the attack is wrong" in case.certainty
    assert not case.proven
    alone = of(batch(0, [False], 1))
    assert alone.outcome is WorstOutcome.CONTRADICTED
    assert "none of them equals its original" in alone.says
    view = overview(model.of_run(record(batch(0, [False], 1))))
    assert (view.level, view.badge) == ("warning", "Inconclusive")
    assert "truth" in view.advice[0][0]


def test_the_grid_decides_where_there_is_one() -> None:
    """A certified image that is off by one grey level is not exact, however small the error."""
    one = batch(0, [False], 1)
    one["scores"]["relative_error"] = column(5e-4)
    assert of(one).outcome is WorstOutcome.CONTRADICTED


def test_a_certified_record_without_a_grid_may_differ_by_rounding() -> None:
    one = batch(0, [False], 1)
    del one["scores"]["exact"]
    one["scores"]["relative_error"] = column(1e-9)
    assert "recovered the training image of node 0 exactly" in of(one).says
    one["scores"]["relative_error"] = column(0.5)
    assert "exactly" not in of(one).says


def test_certified_without_a_truth() -> None:
    case = of(finding(0, scores=None, certificate="EXACT"))
    assert case.says == (
        "Curious node 3 recovered 1 different input image exactly, from 2 of 2 determined "
        "differences of node 0."
    )
    assert "the network received exactly these inputs" in case.certainty


def test_all_is_said_without_a_truth_only_if_the_messages_show_the_number() -> None:
    """A description that says "one record" is no evidence that one record was used."""
    for origin in ("DECLARED", "UNKNOWN", "CONTRADICTED", "VERIFIED"):
        entry = {"subject": "samples", "origin": origin, "detail": "7 are shown"}
        case = of(
            finding(0, scores=None, certificate="EXACT", evidence=[entry]),
            finding(1, scores=None, certificate="EXACT", evidence=[entry]),
        )
        assert ("both input images" in case.says) == (origin == "VERIFIED")
        assert ("training" in case.says) is False
        assert ("not as declared: 7 are shown" in case.certainty) == (origin == "CONTRADICTED")


def test_a_headline_counts_the_gradients_that_were_explained() -> None:
    case = of(finding(0, scores=None, certificate="EXACT", rounds=[[2]]))
    assert "from 1 of 2 determined differences of node 0" in case.says


def test_the_same_records_by_two_attacks_count_once() -> None:
    case = of(batch(0, [True, False], 0), batch(0, [True, True], 0, attack="exact"))
    assert case.says == "Curious node 3 recovered both training images of node 0 exactly."


def sums(*groups: tuple[int, int], scored: bool = True) -> list[dict[str, Any]]:
    """Proven sums over two nodes with one record each."""
    found = []
    for node, other in groups:
        one = batch(node, [True, True], 2, others=[other])
        one["scores"]["owners"] = [node, other]
        found.append(one if scored else {**one, "scores": None})
    return found


def test_a_record_that_several_sums_contain_counts_once() -> None:
    case = of(*sums((0, 1), (1, 2), (0, 2)))
    assert "recovered all 3 training images of nodes 0 to 2 exactly." in case.says
    assert "what is in two of them belongs to a node in both" in case.certainty
    assert "open which image" in of(*sums((0, 1), (2, 3))).certainty


def test_owners_that_are_not_those_of_the_records_are_not_used() -> None:
    (one, other) = sums((0, 1), (2, 3))
    one["scores"]["owners"] = [0, 1, 2]
    assert "recovered all 4 training images of nodes 0 to 3 exactly." in of(one, other).says


def test_without_a_truth_only_sums_without_common_nodes_count() -> None:
    case = of(*sums((0, 1), (1, 2), (3, 4), scored=False))
    assert "at least 4 input images exactly" in case.says
    disjoint = of(*sums((0, 1), (2, 3), scored=False)).says
    assert "recovered 4 input images exactly" in disjoint  # which may be equal


def test_the_adversary_that_recovers_most_comes_first() -> None:
    case = of(
        batch(0, [True, False], 0, adversary="node:3"),
        batch(0, [True, True], 0, adversary="eavesdropper"),
    )
    assert case.says.startswith("An eavesdropper recovered both")


@pytest.mark.parametrize(
    ("psnr", "said"),
    [
        (35.0, "with 35.0 dB PSNR, which is close to the original"),
        (22.0, "with 22.0 dB PSNR, which is recognisable"),
        (9.0, "recovered no recognisable training image; the closest one, of node 0, has 9.0 dB"),
    ],
)
def test_an_approximation_is_put_into_words(psnr: float, said: str) -> None:
    assert said in of(finding(0, psnr)).says


def test_what_nobody_compared_is_not_called_recovered() -> None:
    case = of(finding(0, scores=None, certificate="APPROXIMATE"))
    assert "recovered" not in case.says
    assert "is not known" in case.certainty


def test_nothing_recovered_and_nothing_determined_prove_nothing() -> None:
    failed = of(finding(0, None, certificate="FAILED", residual=None, labels=None, batch=None))
    assert "not evidence of privacy" in failed.certainty
    closed = {"node": 7, "adversary": "node:3", "reason": "needs two rounds"}
    assert "not evidence of privacy" in of(undetermined=(closed,)).certainty
    strange = {**closed, "understood": False}
    assert "not understood" in of(undetermined=(strange,)).says


def test_records_that_are_not_images_are_not_called_images() -> None:
    made = model.of_run(record(batch(0, [True], 1)))
    case = worst_case(made.findings, made.undetermined, (12,))
    assert "the training record of node 0" in case.says


def test_every_overview_says_what_to_do() -> None:
    closed = {"node": 7, "adversary": "node:3", "reason": "needs two rounds"}
    for made in (
        record(batch(0, [True], 1)),
        record(finding(0, 22.0)),
        record(finding(0, scores=None, certificate="APPROXIMATE")),
        record(undetermined=(closed,)),
        record(undetermined=({**closed, "understood": False},)),
    ):
        view = overview(model.of_run(made))
        assert 1 <= len(view.advice) <= 3
        assert view.says.endswith(".")
        assert view.certainty.endswith(".")


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"verdict": "INCONCLUSIVE", "needs": 40}, "about 40 would decide"),
        ({"verdict": "INCONCLUSIVE", "needs": None}, "Test a smaller epsilon"),
        ({"verdict": "INCONCLUSIVE", "needs": 10**9}, "Test a smaller epsilon"),
        ({"verdict": "INCONCLUSIVE", "needs": None, "p": None}, "Supply what is missing"),
        ({"verdict": "REFUTED"}, "Compute the noise"),
        ({"verdict": "UNSUPPORTED", "test": SENSITIVITY}, "Clip gradients"),
    ],
)
def test_an_audit_advises_only_what_may_help(changes: dict[str, Any], advice: str) -> None:
    of = copy.deepcopy(RECORDS["audit"])
    of["audit"]["verdicts"] = [{**of["audit"]["verdicts"][0], **changes}]
    said = [text for text, _ in overview(model.of_run(of)).advice]
    assert any(advice in text for text in said), said
    assert ("Compute the noise" in " ".join(said)) == (changes["verdict"] == "REFUTED")


def vectors(node: int, error: float, **changes: Any) -> dict[str, Any]:
    """A finding about a record that is not an image."""
    one = finding(node, certificate="FAILED", **changes)
    scores = {
        "relative_error": column(error),
        "identified": column(False),
        **{key: one["scores"][key] for key in ("chance", "labels_found", "not_recovered")},
        "matched": [0],
    }
    return {**one, "scores": scores}


@pytest.mark.parametrize("error", [0.29, 3.2])
def test_a_failed_attack_on_a_table_recovered_nothing(error: float) -> None:
    made = model.of_run(record(vectors(0, error)))
    case = worst_case(made.findings, made.undetermined, (2,))
    assert case.outcome is WorstOutcome.NOTHING
    assert "recovered no training record" in case.says


def test_intervals_that_the_truth_contradicts_are_not_certain() -> None:
    case = of(finding(0, 5.0, certificate="INTERVAL"))
    assert "interval" not in case.says
    assert of(finding(0, 40.0, certificate="INTERVAL")).outcome is WorstOutcome.INTERVAL


def test_intervals_are_certain_as_sent_unless_all_of_them_are_compared() -> None:
    scored = finding(0, 40.0, certificate="INTERVAL")
    unscored = finding(1, scores=None, certificate="INTERVAL")
    assert of(scored).certainty.startswith("The intervals are certain")
    assert of(scored, unscored).certainty.startswith("If the messages contain what")


def test_unscored_intervals_come_before_a_scored_failure() -> None:
    case = of(
        finding(0, 5.0, certificate="FAILED"), finding(1, scores=None, certificate="INTERVAL")
    )
    assert case.outcome is WorstOutcome.INTERVAL


def test_labels_are_named_if_no_input_was_recovered() -> None:
    labels = finding(0, None, attack="labels")
    labels["scores"]["labels_found"] = 1.0
    case = of(finding(0, 8.0, certificate="FAILED"), labels)
    assert case.outcome is not WorstOutcome.NOTHING


def test_what_is_not_understood_is_named_beside_a_failure() -> None:
    strange = {"node": 7, "adversary": "node:3", "reason": "strange", "understood": False}
    one = finding(0, 5.0, certificate="FAILED")
    one["scores"]["identified"] = column(False)
    case = of(one, undetermined=(strange,))
    assert case.outcome is WorstOutcome.NOT_UNDERSTOOD
    assert "not understood" in case.certainty


def test_a_comparison_is_claimed_only_for_what_was_compared() -> None:
    case = of(batch(0, [True], 1), finding(1, scores=None, certificate="EXACT"))
    assert "agrees" not in case.certainty


@pytest.mark.parametrize("measure", ["labels", "epsilon"])
def test_a_gate_names_an_image_only_if_a_limit_on_inputs_is_exceeded(measure: str) -> None:
    of = copy.deepcopy(RECORDS["gate"])
    assert "reconstructs" in overview(model.of_run(of)).says
    for rule in of["gate"]["rules"]:
        if rule["kind"] == "budget":
            rule |= {"measure": measure, "says": f"{measure} over its limit"}
    view = overview(model.of_run(of))
    assert "reconstructs" not in view.says
    assert f"{measure} over its limit" in view.says
    assert ("measured" in view.certainty) == (measure == "labels")


def test_an_interrupted_run_says_so() -> None:
    made = model.of_run({**record(finding(0, 22.0)), "complete": False})
    assert "interrupted" in overview(made).certainty


@pytest.mark.parametrize(
    ("psnr", "blind", "outcome"),
    [
        (30.5, 12.0, WorstOutcome.CLOSE),
        (30.5, 27.4, WorstOutcome.CLOSE),
        (30.5, 27.6, WorstOutcome.NOTHING),
        (30.5, 42.0, WorstOutcome.NOTHING),
        (22.0, 42.0, WorstOutcome.NOTHING),
    ],
)
def test_what_a_blind_guess_reaches_is_no_leak(
    psnr: float, blind: float, outcome: WorstOutcome
) -> None:
    one = finding(0, psnr)
    one["scores"] |= {"blind_psnr": blind, "identified": column(False), "labels_found": 0.0}
    case = of(one)
    assert case.outcome is outcome
    assert ("a blind guess" in case.says) == (outcome is WorstOutcome.NOTHING)


@pytest.mark.parametrize(("chance", "identifies"), [(0.05, True), (0.5, False), (None, False)])
def test_a_record_that_a_guess_identifies_as_often_is_not_identified(
    chance: float | None, identifies: bool
) -> None:
    one = finding(0, 5.0)
    one["scores"] |= {"chance": chance, "identified": column(True)}
    case = of(one)
    assert ("identifies the record" in case.certainty) == identifies
    assert (case.outcome is WorstOutcome.IDENTIFIED) == identifies
