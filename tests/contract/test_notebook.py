"""In a notebook: short reprs, inert cards, progress in one line, and clear errors."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
import types
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from records import HOSTILE, RECORDS

import leakaudit as la
from leakaudit.core import progress
from leakaudit.core.reconstruction import Reconstruction, Reconstructions
from leakaudit.core.trace import Layout, Messages
from leakaudit.judging.gate.config import Check, Gate
from leakaudit.judging.gate.judge import GateResults
from leakaudit.reporting.rendering import cards
from leakaudit.reporting.results import model
from leakaudit.runs.sweeping.run import SweepOutcome
from leakaudit.scoring.scoring import ScoreTable
from leakaudit.views.accounting.compare import Comparison, Comparisons

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs/notebooks").glob("*.ipynb"))
WIDE = 400  # characters of a repr
LARGE = 100_000  # bytes of a card
TASK = la.TaskSpec("mlp", shape=(1, 25, 25), classes=10, levels=255, data="faces")


class Markup(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(value: Any) -> Markup:
    markup = Markup()
    markup.feed(value._repr_html_())
    assert markup.open == []
    return markup


def reconstruction(count: int = 16, channels: int = 1, side: int = 25) -> Reconstruction:
    x = torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))
    y = torch.arange(count)
    return Reconstruction(2, "analytic", x, y, la.Certificate.EXACT, 1e-7, note=HOSTILE)


def truth(count: int = 16) -> la.Truth:
    x = torch.rand(count, 1, 25, 25, generator=torch.Generator().manual_seed(1))
    x = (x * 255).round() / 255
    zeros = torch.zeros(count, dtype=torch.int64)
    return la.Truth("id", TASK, x, zeros, zeros + 2, zeros, x[:0])


def trace(name: str = "pdmm") -> la.Trace:
    index = torch.zeros(3, dtype=torch.int32)
    payload = torch.full((3, 5), 0.123456)
    messages = Messages(index, index, index, index, index, index.bool(), payload, (name,))
    graph = la.Graph(2, ((0, 1),))
    task = la.TaskSpec(name, shape=(1, 25, 25), data=name)
    params = {name: name}
    return la.Trace(name, params, task, graph, Layout(("w",), ((5,),)), (0, 5), 1, (messages,))


def leaks(name: str = "eavesdropper") -> la.Leaks:
    rounds = torch.tensor([1, 2])
    value = torch.full((1, 5), 0.123456)
    leak = la.GradientLeak(
        0, rounds, torch.ones(1, 2), value, torch.zeros(1), (0, 5), adversary=name, formula=name
    )
    return la.Leaks(TASK, (leak,), {1: name})


def bounds() -> Comparisons:
    scenario = la.Scenario(
        victim="dpsgd",
        nodes=4,
        graph="ring",
        rounds=3,
        data="gaussians",
        model="logistic",
        set={"order": "adapt", "noise": "message", "sigma": 0.5, "clip": 1.0},
    )
    return la.bound(scenario, "eavesdropper", [0])


def record(kind: str) -> model.Record:
    return model.of(RECORDS[kind])


VALUES: dict[str, Callable[[], Any]] = {
    "trace": trace,
    "leaks": leaks,
    "leak": lambda: leaks()[0],
    "reconstruction": reconstruction,
    "reconstructions": lambda: Reconstructions([reconstruction(8), reconstruction(8)]),
    "colour": lambda: Reconstructions([reconstruction(16, 3, 128)]),
    "score": lambda: la.score(reconstruction(), truth())[0],
    "scores": lambda: la.score([reconstruction()], truth()),
    "unscored": lambda: la.score(reconstruction(), None),
    "comparison": lambda: bounds()[0],
    "comparisons": bounds,
    "verdict": lambda: la.Verdict.REFUTED,
    "claim": lambda: la.claims(rows=[1])[0],
    "interrupted gate": lambda: GateResults(Gate((Check("main", "train:record"),))),
    "interrupted sweep": lambda: SweepOutcome(3, 0),
    **{kind: lambda kind=kind: record(kind) for kind in RECORDS},  # type: ignore[misc]
}
MORE: dict[str, Callable[[], Any]] = {  # a repr, but no card
    "truth": truth,
    "messages": lambda: trace().messages[0],
}


# --- reprs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*VALUES, *MORE])
def test_a_repr_is_short_and_has_no_values(name: str) -> None:
    value = {**VALUES, **MORE}[name]()
    parts = value if isinstance(value, list) else [value]
    for one in parts:
        text = repr(one)
        assert len(text) <= WIDE
        assert "tensor" not in text
        assert "0.12" not in text
        assert text.isprintable()


def test_names_from_a_file_are_inert_in_a_repr() -> None:
    for value in (trace(HOSTILE), trace(HOSTILE).messages[0], leaks(HOSTILE), leaks(HOSTILE)[0]):
        assert repr(value).isprintable()
        assert len(repr(value)) <= WIDE


def test_lists_are_still_lists() -> None:
    found = Reconstructions([reconstruction()])
    assert isinstance(found, list)
    assert isinstance(bounds(), list)
    assert all(isinstance(one, Comparison) for one in bounds())
    scores = la.score(found, truth())
    assert isinstance(scores, list)
    assert scores == list(scores)
    assert repr(scores) == repr(list(scores))


def test_stored_scores_do_not_contain_the_data() -> None:
    scores = la.score(reconstruction(), truth())
    for other in (pickle.loads(pickle.dumps(scores)), copy.copy(scores), copy.deepcopy(scores)):
        assert isinstance(other, ScoreTable)
        assert other == scores
        assert other.truth is None
        assert other.found == ()


# --- cards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
def test_a_card_is_small_whole_and_without_scripts(name: str) -> None:
    value = VALUES[name]()
    markup = parsed(value)
    assert len(value._repr_html_()) < LARGE
    allowed = {"div", "b", "table", "tr", "td", "th", "span", "figure", "figcaption", "img"}
    assert {tag for tag, _ in markup.tags} <= allowed | {"br", "pre"}
    for tag, attributes in markup.tags:
        assert set(attributes) <= {"style", "src", "alt", "aria-hidden"}
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/png;base64,")
        # Neither a dark nor a light background is assumed.
        assert not re.search(
            r"background|[^-]color:(?!#d1242f|#c98500|#2da44e|#8b949e|inherit)", str(attributes)
        )


def test_names_of_a_malicious_trace_are_inert_in_a_card() -> None:
    for value in (trace(HOSTILE), leaks(HOSTILE), leaks(HOSTILE)[0], reconstruction()):
        shown = value._repr_html_()
        assert "&lt;script&gt;" in shown
        assert "<script" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        parsed(value)


def test_pictures_are_shown_with_their_certificates_and_originals() -> None:
    found = Reconstructions([reconstruction()])
    tags = [tag for tag, _ in parsed(found).tags]
    assert (tags.count("figure"), tags.count("img")) == (16, 16)
    assert "exact" in found._repr_html_()
    beside = [tag for tag, _ in parsed(la.score(found, truth())).tags]
    assert beside.count("img") == 32


def test_of_many_pictures_some_are_shown() -> None:
    found = Reconstructions([reconstruction(40)])
    assert "16 of 40 pictures are shown" in found._repr_html_()
    assert [tag for tag, _ in parsed(found).tags].count("img") == cards.COLUMNS


def test_scores_of_a_changed_list_are_shown_without_pictures() -> None:
    scores = la.score([reconstruction()], truth())
    scores.pop()
    assert "<img" not in scores._repr_html_()


def test_sequences_are_shown_as_text() -> None:
    tokens = torch.tensor([list(b"<b>secret</b>")])
    found = Reconstruction(0, "sequences", tokens, None, la.Certificate.EXACT, 0.0)
    assert "&lt;b&gt;secret&lt;/b&gt;" in found._repr_html_()
    assert "secret" not in repr(found)


def test_importing_the_nouns_loads_no_rendering() -> None:
    code = (
        "import sys, leakaudit as la; la.Trace, la.Leaks, la.Reconstruction, la.Score, la.Verdict; "
        "assert not [m for m in sys.modules if m.startswith('leakaudit.reporting.rendering')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- progress ---------------------------------------------------------------------------------------------------------


class Notebook:
    """IPython as far as progress uses it, and what it displayed."""

    def __init__(self) -> None:
        self.displayed: list[dict[str, str]] = []
        self.lines = 0

    def display(self, forms: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw
        assert display_id
        self.lines += 1
        self.displayed.append(forms)
        return self

    def update(self, forms: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.displayed.append(forms)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """A process that looks like the kernel of a notebook."""
    seen = Notebook()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=True)  # type: ignore[attr-defined]
    display = types.ModuleType("IPython.display")
    display.display = seen.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    return seen


@progress.visible
def work(what: str = "nodes") -> int:
    for k in range(3):
        progress.step(what, k, 3)
    return 7


def test_progress_is_one_line_that_is_replaced_and_emptied(notebook: Notebook) -> None:
    assert work("<b>") == 7
    assert notebook.lines == 1
    assert [one["text/plain"][:11] for one in notebook.displayed] == [
        "<b>: 0 of 3",
        "<b>: 1 of 3",
        "<b>: 2 of 3",
        "",
    ]
    assert "&lt;b&gt;: 1 of 3" in notebook.displayed[1]["text/html"]


def test_quick_work_shows_nothing(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 60.0)
    work()
    assert notebook.displayed == []


def test_a_listener_replaces_the_line(notebook: Notebook) -> None:
    seen: list[int] = []
    with progress.watching(lambda what, done, total: seen.append(done)):
        work()
    assert seen == [0, 1, 2]
    assert notebook.displayed == []


def test_outside_of_a_notebook_nothing_is_displayed() -> None:
    assert not progress.in_notebook()
    assert work() == 7


def test_the_functions_of_the_package_show_progress(notebook: Notebook) -> None:
    bounds()
    assert notebook.lines == 1
    assert notebook.displayed[-1]["text/plain"] == ""


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> la.Trace:
    scenario = la.Scenario(
        victim="fedsgd", nodes=3, graph="star", rounds=1, data="gaussians", model="logistic"
    )
    return la.record(scenario)[0]


def test_an_adversary_may_be_text(recorded: la.Trace) -> None:
    by_value = la.leaks(recorded, la.Adversary.parse("node:1"), [0])
    assert repr(la.leaks(recorded, "node:1", [0])) == repr(by_value)
    assert la.explain(recorded, "node:1") == la.explain(recorded, la.Adversary.parse("node:1"))
    assert repr(la.bound(recorded, ["node:1"], [0])) == repr(la.bound(recorded, "node:1", [0]))


def attacked(leaks: Any, generator: Any) -> object:
    return la.attack(leaks, generator=generator)


WRONG: dict[str, Callable[[la.Trace], object]] = {
    "nodes: expected a list, got 2; write nodes=[2]": lambda t: la.leaks(t, nodes=2),  # type: ignore[arg-type]
    "nodes: expected a list, got 1; write nodes=[1]": lambda t: la.bound(t, nodes=1),  # type: ignore[arg-type]
    "nodes: expected a list such as [0, 3], got '2'": lambda t: la.explain(t, "node:1", "2"),  # type: ignore[arg-type]
    "nodes: expected whole numbers, got 'a'": lambda t: la.leaks(t, nodes=["a"]),  # type: ignore[list-item]
    "adversary 'everyone': expected eavesdropper": lambda t: la.leaks(t, "everyone"),
    "adversary: expected an Adversary, or text": lambda t: la.leaks(t, 3),  # type: ignore[arg-type]
    "write generator=torch.Generator().manual_seed(0)": lambda t: attacked(la.leaks(t), 0),
    "write la.attack(la.leaks(trace), ...)": lambda t: attacked(t, torch.Generator()),
    "write la.score(found, la.load_truth(file))": lambda t: la.score([], "t.truth.pt"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("said", WRONG)
def test_a_mistake_ends_in_one_line_that_says_what_to_write(said: str, recorded: la.Trace) -> None:
    with pytest.raises(la.LeakauditError, match=re.escape(said)) as error:
        WRONG[said](recorded)
    assert "\n" not in str(error.value)


# --- the notebooks of the documentation -------------------------------------------------------------------------------


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["audit-a-protocol", "audit-your-own-loop"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel_and_displays_cards(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "work").mkdir()
    code = (
        "import sys, nbformat, nbclient; "
        "book = nbformat.read(sys.argv[1], 4); "
        "nbclient.NotebookClient(book, timeout=300, kernel_name='python3', "
        "resources={'metadata': {'path': sys.argv[2]}}).execute(); "
        "nbformat.write(book, sys.argv[3])"
    )
    out = tmp_path / "executed.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", code, path, tmp_path / "work", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    text = out.read_text()
    assert text.count("text/html") >= 5
    assert "data:image/png;base64," in text
    assert len(text) < 300_000
