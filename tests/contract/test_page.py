"""The HTML page: well-formed, inert whatever the names are, complete, and small for many findings."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import re

import pytest
from effort import counted
from records import EXACT, RECORDS, audit, gate_of_two_checks, record, rendered


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, text, and ids."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", RECORDS)
def test_a_page_is_well_formed_and_asks_for_nothing(name: str) -> None:
    page = Reader(rendered("html", RECORDS[name]))
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {
        "link",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "foreignobject",
    }
    for tag, attributes in page.tags:
        assert not [a for a in attributes if a.startswith("on")], tag
        for a in ("src", "href", "action", "xlink:href"):
            assert (attributes.get(a) or "#").startswith(("#", "data:image/png;base64,")), (
                tag,
                attributes,
            )
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"}
    assert links <= set(ids)
    policy = next(
        a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; ")
    assert policy.endswith("base-uri 'none'; form-action 'none'")
    assert [tag for tag, _ in page.tags].count("script") == 1
    script = rendered("html", RECORDS[name]).split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("name", RECORDS)
def test_a_page_begins_with_the_verdict_and_ends_with_limits_and_sources(name: str) -> None:
    of = RECORDS[name]
    text = " ".join(Reader(rendered("html", of)).text.split())
    places = [
        text.index(" ".join(part.split()))
        for part in ("What to do", "Scope and threat model", "Limits and responsible use")
    ]
    assert places == sorted(places)
    for part in (
        "not evidence of privacy",
        "it is not a proof of privacy",
        "Provenance",
        "Glossary",
        of["provenance"]["digest"],
    ):
        assert part in text
    assert not re.search(r"\b(is|are) (private|safe)\b", text)


def test_hostile_names_are_text() -> None:
    page = rendered("html", RECORDS["hostile"])
    assert page.count("<script") == 1  # our own, whose hash the policy names
    assert "onerror=alert(2)&gt;" in page
    assert "{{7*7}}" in Reader(page).text
    assert "49" not in Reader(page).text


def test_what_is_missing_is_said_with_the_command_that_adds_it() -> None:
    text = Reader(rendered("html", RECORDS["not scored"])).text
    for command in (
        "leakaudit audit",
        "leakaudit check",
        "--rescore",
        "--against",
        "leakaudit report",
    ):
        assert command in text
    judged = Reader(rendered("html", RECORDS["audit"])).text
    assert "REFUTED" in judged
    assert "Results by epsilon" in judged
    assert "Verdicts on claims" not in judged
    assert "not scored" not in judged


def test_a_page_with_2000_findings_is_quick_small_and_in_blocks() -> None:
    of = audit(2000)
    rendered("html", audit(50))  # imports and templates
    with counted() as half:
        rendered("html", audit(1000))
    with counted() as effort:
        page = rendered("html", of)
    assert effort.calls < 2.5 * half.calls
    assert effort.calls < 2_000 * 2000
    assert len(page) < 1_000_000
    read = Reader(page)
    blocks = [a for tag, a in read.tags if tag == "details" and "id" in a]
    assert [a["id"] for a in blocks if "open" in a] == ["worst"]
    assert len(blocks) == 1 + 20
    assert {f"#{a['id']}" for a in blocks} <= {
        str(a.get("href")) for tag, a in read.tags if tag == "a"
    }
    assert sum(tag == "tr" for tag, _ in read.tags) > 2000


def test_a_gate_shows_limits_controls_and_acceptances() -> None:
    text = " ".join(Reader(rendered("html", RECORDS["gate"])).text.split())
    for part in (
        "Over the limits",
        "Budgets and baseline",
        "Lint",
        "Controls",
        "Acceptances",
        "main/node:3/exact",
        "node:3 reconstructs the input of node 5",
        "30.0 dB",
    ):
        assert part in text


def test_a_gate_draws_its_network_with_the_adversary_marked() -> None:
    page = Reader(rendered("html", RECORDS["gate"]))
    marked = [
        (tag, a["class"])
        for tag, a in page.tags
        if tag in ("rect", "circle") and str(a["class"]).startswith("node ")
    ]
    assert sorted(marked) == sorted(
        [("rect", "node own"), ("circle", "node s4"), ("circle", "node s0")]
        + [("circle", "node unknown")] * 5
    )
    assert "Thick lines: observed by curious node 3." in " ".join(page.text.split())
    assert any(
        a.get("aria-label") == "Network of 8 nodes and 7 edges. node:3 observes 2 of the edges."
        for _, a in page.tags
    )
    assert any(
        a.get("aria-label")
        == "What was recovered from the leaks of each node, by the rounds that they span."
        for _, a in page.tags
    )


def test_a_gate_of_several_checks_draws_each_ones_network() -> None:
    text = Reader(rendered("html", gate_of_two_checks())).text
    assert "As observed by the adversary node:3 in check main." in text
    assert "As observed by the adversary node:0 in check wide." in text


def test_no_node_is_red_if_the_recording_is_not_what_it_declares() -> None:
    sure = rendered("html", record(EXACT))
    assert 'class="node s5"' in sure
    doubtful = {**record(EXACT), "unclear": ["its noise is not the declared one"]}
    page = rendered("html", doubtful)
    assert '<strong class="badge warning">Inconclusive</strong>' in page
    assert 'class="node s5"' not in page
    assert 'class="node s2"' in page
