"""`view`: who may ask what, what the list shows, and that a malicious folder stays inert."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, operator, union-attr"

from __future__ import annotations

import copy
import html
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from invoked import SWEEP
from records import HOSTILE, RECORDS, record
from viewed import TOKEN, Viewer, bare, put, rows, viewing

from leakaudit.cli import main
from leakaudit.cli import view as verb
from leakaudit.core import progress
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.results import progress_file
from leakaudit.reporting.viewing import files, reports, server, summaries
from leakaudit.reporting.viewing.export import export
from leakaudit.reporting.viewing.filters import FIELDS, SORTS, Query
from leakaudit.reporting.viewing.index import RunIndex
from leakaudit.reporting.viewing.reports import Reports
from leakaudit.reporting.viewing.summaries import identifier

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(scope="module")
def folder(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of every kind: two attacks and a sweep that ran, and made-up records."""
    root = tmp_path_factory.mktemp("runs")
    trace = str(recorded)
    assert main(["attack", trace, "-o", str(root / "faces/all"), "-q"]) == 0
    assert main(["attack", trace, "--as", "node:1", "-o", str(root / "faces/one"), "-q"]) == 0
    plan = root.parent / "viewed-sweep.toml"
    plan.write_text(SWEEP)
    assert main(["sweep", str(plan), "-o", str(root / "swept"), "--workers", "0", "-q"]) == 0
    for name in ("audit", "gate", "hostile", "failed"):
        put(root / "made" / name, bare(RECORDS[name]))
    return root


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[Viewer]:
    with viewing(folder) as started:
        yield started


# --- who may ask what -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/x/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "//"]
)
def test_a_request_without_the_token_is_refused(viewer: Viewer, path: str) -> None:
    answer = viewer.ask(path)
    assert answer.code == 403
    assert "faces" not in answer.text


@pytest.mark.parametrize("path", ["/é/", "/%ff%fe/", "/%00/", "/" + "a" * 5000 + "/"])
def test_a_token_of_other_characters_is_refused(viewer: Viewer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", viewer.port)) as to:
        request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\nConnection: close\r\n\r\n"
        )
        to.sendall(request.encode("latin-1"))
        assert to.recv(100).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"])
def test_only_get_and_head_are_allowed(viewer: Viewer, method: str) -> None:
    answer = viewer.ask(f"/{TOKEN}/", method, body=b"x=1" if method == "POST" else None)
    assert answer.code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_has_no_body(viewer: Viewer) -> None:
    answer = viewer.ask(f"/{TOKEN}/", "HEAD")
    assert (answer.code, answer.text) == (200, "")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "{own},{own}"],
)
def test_another_host_name_is_refused(viewer: Viewer, host: str) -> None:
    """A name that a stranger's page resolves to this machine (DNS rebinding)."""
    own = f"127.0.0.1:{viewer.port}"
    asked = host.format(port=viewer.port, own=own)
    assert viewer.ask(f"/{TOKEN}/", host=asked).code in (400, 421)
    assert viewer.ask(f"/{TOKEN}/", host=f"localhost:{viewer.port}").code == 200


@pytest.mark.parametrize(
    "path",
    [
        "runs/../../../../../../etc/passwd",
        "runs/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "runs/%2e%2e/%2e%2e/etc/passwd",
        "../" * 9 + "etc/passwd",
        "/etc/passwd",
        "runs/faces/all.html",
        "runs/faces%2Fall.html",
        "runs/0000000000000000.html",
        "runs/.html",
        "runs/a%00b.html",
        "watch/..%2f..%2fetc%2fpasswd.html",
        "compare.html?run=../../etc/passwd&run=/etc/passwd",
        "compare.html?run=0000000000000000&run=1111111111111111",
        "list.js",
        "faces/all/results.json",
    ],
)
def test_a_path_is_never_looked_up(viewer: Viewer, path: str) -> None:
    answer = viewer.get(path)
    assert answer.code in (403, 404)
    assert "root:" not in answer.text


def test_every_answer_forbids_caches_frames_and_requests(viewer: Viewer) -> None:
    for answer in (viewer.get(), viewer.report("faces/all"), viewer.get("x"), viewer.ask("/")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
        assert "set-cookie" not in answer.headers
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        scripts = re.search(r"script-src ([^;]*)", policy)
        assert scripts is None or scripts[1] == "'none'" or scripts[1].startswith("'sha256-")
        assert "unsafe-eval" not in policy
        assert " http" not in policy


def test_a_query_of_any_length_is_answered(viewer: Viewer) -> None:
    assert viewer.get("?q=" + "a" * 9000).code == 414
    assert viewer.get("?q=" + "%ff" * 200 + "&page=-1&sort=%00").code == 200
    assert viewer.get("?page=99999").code == 200
    assert viewer.get("?page=" + "9" * 3000).code == 200


def test_the_server_listens_on_the_loopback_interface_only(viewer: Viewer) -> None:
    other = socket.gethostbyname_ex(socket.gethostname())[2]
    for address in other:
        if not address.startswith("127."):
            with pytest.raises(OSError, match=r"refused|timed out"):
                socket.create_connection((address, viewer.port), timeout=2)


# --- connections without the token ------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(folder: Path) -> Iterator[Viewer]:
    """A viewer with few places for connections without the token."""
    with viewing(folder, seconds=2, places=4) as started:
        yield started


def ends(connection: socket.socket, seconds: float) -> bool:
    """Whether the viewer ends a connection in time, without an answer."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_half_requests_of_others_take_no_place_of_a_reader(narrow: Viewer) -> None:
    with ExitStack() as opened:
        others = []
        for _ in range(server.CONNECTIONS + 6):
            other = opened.enter_context(socket.create_connection(("127.0.0.1", narrow.port)))
            other.sendall(b"GET / HT")
            others.append(other)
        assert narrow.get().code == 200
        assert all(ends(other, 20) for other in others)


def test_a_request_that_arrives_byte_by_byte_ends_in_time(narrow: Viewer) -> None:
    """Bytes do not extend the time: the whole request must arrive in it."""
    with socket.create_connection(("127.0.0.1", narrow.port)) as slow:
        began = time.monotonic()
        with suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() < began + 20:
                slow.sendall(b"G")
                time.sleep(0.1)
        assert 1.5 <= time.monotonic() - began < 20


def test_a_refused_request_ends_its_connection(narrow: Viewer) -> None:
    with socket.create_connection(("127.0.0.1", narrow.port), timeout=20) as refused:
        request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{narrow.port}\r\n\r\n"
        refused.sendall(request.encode())
        answer = b""
        while more := refused.recv(1000):
            answer += more
        assert answer.split()[1] == b"403"
        assert b"\r\nconnection: close\r\n" in answer.lower()


def test_a_connection_with_the_token_stays_between_requests(narrow: Viewer) -> None:
    reader = http.client.HTTPConnection("127.0.0.1", narrow.port, timeout=150)
    for _ in range(2):
        reader.request("GET", f"/{TOKEN}/")
        kept = reader.sock
        answer = reader.getresponse()
        assert answer.status == 200
        answer.read()
        time.sleep(3)  # longer than a connection without the token may wait
        assert reader.sock is kept
    reader.close()


# --- the list ---------------------------------------------------------------------------------


def test_the_list_shows_every_run_with_its_outcome(viewer: Viewer) -> None:
    page = viewer.get().text
    assert set(rows(page)) == {
        *("faces/all", "faces/one", "swept"),
        *("made/audit", "made/gate", "made/hostile", "made/failed"),
    }
    for words in ("recovered", "REFUTED", "over the limits", "nothing recovered"):
        assert f">{words}</span>" in page
    assert "7 runs" in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("kind=sweep", {"swept"}),
        ("kind=audit", {"made/audit"}),
        ("verdict=REFUTED", {"made/audit"}),
        ("verdict=nothing+recovered", {"made/failed", "faces/one"}),
        ("protocol=dpsgd", {"swept"}),
        ("adversary=nodes%3A1", {"faces/one"}),
        (
            "since=2030-01-31&until=2030-01-31",
            {"made/audit", "made/gate", "made/hostile", "made/failed"},
        ),
        ("until=2030-01-30", {"faces/all", "faces/one", "swept"}),
        ("q=FACES+nodes%3A1", {"faces/one"}),
        ("q=nothing-like-that", set()),
    ],
)
def test_the_server_filters_without_a_script(viewer: Viewer, query: str, found: set[str]) -> None:
    page = viewer.get(f"?{query}").text
    assert set(rows(page)) == found
    assert ("No run matches" in page) is True
    assert ('id="none" class="quiet" hidden' in page) is bool(found)


def test_the_server_sorts_without_a_script(viewer: Viewer) -> None:
    every = {sort: rows(viewer.get(f"?sort={sort}").text) for sort in SORTS}
    assert every["name"] == sorted(every["name"])
    assert every["oldest"][-1].startswith("made/")
    assert every["newest"][0].startswith("made/")
    assert set(every["worst"][-2:]) == {"made/failed", "faces/one"}
    assert {len(found) for found in every.values()} == {7}


def test_the_script_knows_the_same_fields_and_orders(project: Path) -> None:
    script = (project / "leakaudit/reporting/viewing/list.js").read_text()
    names = re.search(r"const NAMES = \[(.*)\];", script)
    orders = re.search(r"const ORDER = \{(.*?)\n  \};", script, re.DOTALL)
    assert names is not None
    assert orders is not None
    assert tuple(json.loads(f"[{names[1]}]")) == FIELDS
    assert set(re.findall(r"^    (\w+)[:,]", orders[1], re.M)) == set(SORTS)


def test_the_list_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from leakaudit.reporting.viewing import server;"
        "from leakaudit.reporting.viewing import pages;"
        "from leakaudit.reporting.viewing.filters import Query;"
        f"i = server.RunIndex(Path({str(folder)!r})); pages.listed(i.listing(), Query(), 'x');"
        "print(sorted({'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_file_is_read_again_only_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a", RECORDS["attack"])
    put(tmp_path / "b", RECORDS["audit"])
    index = RunIndex(tmp_path)
    read = []
    plain = files.head

    def counting(path: Path, limit: int) -> bytes:
        read.append(path.parent.name)
        return plain(path, limit)

    monkeypatch.setattr(summaries, "head", counting)
    assert len(index.listing().runs) == 2
    assert sorted(read) == ["a", "b"]
    put(tmp_path / "a", RECORDS["nothing"])
    put(tmp_path / "c", RECORDS["attack"])
    shutil.rmtree(tmp_path / "b")
    found = index.listing()
    assert [(run.place, run.verdict) for run in found.runs] == [
        ("a", "nothing recovered"),
        ("c", "recovered"),
    ]
    assert sorted(read) == ["a", "a", "b", "c"]


def test_a_large_record_is_listed_from_its_two_ends(tmp_path: Path) -> None:
    large = copy.deepcopy(RECORDS["attack"])
    large["findings"] *= 1200
    put(tmp_path / "large", large)
    assert (tmp_path / "large/results.json").stat().st_size > summaries.WHOLE
    run = RunIndex(tmp_path).listing().runs[0]
    assert (run.kind, run.protocol, run.verdict) == ("attack", "pdmm", "not read")
    assert run.started == "2030-01-31T12:00:00+00:00"
    assert run.says[:100] == large["summary"][:100]


# --- malicious folders ------------------------------------------------------------------------

INERT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def trap(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything is wrong, beside one good run."""
    root = tmp_path_factory.mktemp("trap")
    outside = tmp_path_factory.mktemp("outside")
    put(outside / "secret", record(name="secretprotocol"))
    shutil.copytree(folder / "faces/all", root / "good")
    put(root / INERT.replace("/", "\u2215"), bare(RECORDS["hostile"]))
    put(root / "line\nbreak\u202e", RECORDS["attack"])
    put(Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")), RECORDS["attack"])
    (root / "link").symlink_to(outside / "secret")
    (root / "loop").symlink_to(root)
    for name in (
        "link-file",
        "pipe",
        "folder",
        "deep",
        "array",
        "huge",
        "binary",
        "future",
        "empty",
    ):
        (root / name).mkdir()
    (root / "link-file/results.json").symlink_to(outside / "secret/results.json")
    os.mkfifo(root / "pipe/results.json")
    (root / "folder/results.json").mkdir()
    nested = '"settings": {"deep": ' + "[" * 100_000 + "]" * 100_000 + ", "
    nested = json.dumps(RECORDS["attack"]).replace('"settings": {', nested)
    (root / "deep/results.json").write_text(nested)
    (root / "array/results.json").write_text('{"kind": "attack", "findings":' + "[" * 900_000)
    with (root / "huge/results.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: no space is used
    (root / "binary/results.json").write_bytes(bytes(range(256)) * 16)
    (root / "future/results.json").write_text(json.dumps({**RECORDS["attack"], "version": 99}))
    (root / "empty/results.json").write_text("")
    wrong = shutil.copytree(folder / "faces/all", root / "digest")
    (wrong / "reconstructions.npz").write_bytes(b"PK other bytes")
    piped = shutil.copytree(folder / "faces/all", root / "piped")
    (piped / "originals.npz").unlink()
    os.mkfifo(piped / "originals.npz")
    linked = shutil.copytree(folder / "faces/all", root / "linked")
    (linked / "originals.npz").unlink()
    (linked / "originals.npz").symlink_to(folder / "faces/all/originals.npz")
    return root


@pytest.fixture(scope="module")
def trapped(trap: Path) -> Iterator[Viewer]:
    with viewing(trap) as started:
        yield started


def test_the_list_of_a_malicious_folder_is_shown_and_inert(trapped: Viewer) -> None:
    answer = trapped.get()
    assert answer.code == 200
    page = answer.text
    assert page.count("<script>") == 1  # our own
    assert "<img" not in page
    assert HOSTILE.split("\n", maxsplit=1)[0] not in page
    assert "secretprotocol" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "Not readable: 9 folders" in page
    for name, why in (
        ("pipe", "not a regular file"),
        ("folder", "not a regular file"),
        ("link-file", "not a regular file"),
        ("deep", "nested too deeply"),
        ("huge", "does not begin as a record"),
        ("empty", "not valid JSON"),
        ("future", "not a record of leakaudit"),
    ):
        assert re.search(rf"<strong>{name}</strong> <span[^>]*>[^<]*{why}", page), name


def test_links_are_not_followed(trap: Path) -> None:
    listing = RunIndex(trap).listing()
    assert {"link", "loop", "link-file"}.isdisjoint({run.place for run in listing.runs})
    for path in listing.paths.values():
        assert path.resolve() == path


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("digest", "is not the file that"),
        ("piped", "link or not a regular file"),
        ("linked", "link or not a regular file"),
    ],
)
def test_a_report_with_wrong_files_is_refused(trapped: Viewer, place: str, why: str) -> None:
    answer = trapped.report(place)
    assert answer.code == 422
    assert why in answer.text
    assert str(trapped.root) not in answer.text


def test_a_report_of_malicious_names_is_inert_and_the_others_still_work(trapped: Viewer) -> None:
    answer = trapped.report(INERT.replace("/", "\u2215"))
    assert answer.code == 200
    assert "<script>alert" not in answer.text
    assert "<img src=x" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert trapped.report("good").code == 200


def test_a_folder_replaced_by_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(folder / "faces/all", root / "run")
    listing = RunIndex(root).listing()
    shutil.move(root / "run", tmp_path / "moved")
    (root / "run").symlink_to(tmp_path / "moved")
    with pytest.raises(LeakauditError, match="is outside"):
        Reports(root).page(listing.paths[identifier("run")])


def test_a_report_that_takes_too_long_is_ended(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(LeakauditError, match="took longer than"):
        Reports(folder, seconds=0.0).page(folder / "faces/all")
    assert time.monotonic() - began < 60


def test_a_process_that_dies_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PAGE", 10)  # an answer that is too long
    with pytest.raises(LeakauditError, match="ended without an answer"):
        Reports(folder).page(folder / "faces/one")


# --- reports and comparisons ------------------------------------------------------------------


def test_a_report_is_the_page_of_report_with_a_way_back(viewer: Viewer, folder: Path) -> None:
    from leakaudit import api

    answer = viewer.report("faces/all")
    assert answer.code == 200
    bar = re.search(r'<nav aria-label="All runs">.*?</nav>', answer.text)
    assert bar is not None
    assert '<a href="../index.html">' in bar[0]
    plain = answer.text.replace(f"\n{bar[0]}", "", 1)
    assert plain == api.report(folder / "faces/all", "html")


def test_a_sweep_and_every_other_kind_can_be_opened(viewer: Viewer) -> None:
    for place in ("swept", "made/audit", "made/gate", "made/failed", "faces/one"):
        answer = viewer.report(place)
        assert answer.code == 200, place
        assert "All runs" in answer.text


def test_two_attacks_are_compared_check_by_check(viewer: Viewer) -> None:
    names = [identifier(place) for place in ("faces/one", "faces/all")]
    page = viewer.get("compare.html?" + "&".join(f"run={name}" for name in names)).text
    assert "2 runs compared" in page
    assert "From <strong>faces/all</strong> to <strong>faces/one</strong>" in page
    assert "Compared with the earlier results" in page
    assert re.search(r'<th scope="row">adversaries</th><td>nodes:1</td><td>eavesdropper', page)
    equal = page[page.index("Equal in all of them") :]
    assert '<th scope="row">protocol</th>' in equal


def test_many_runs_of_any_kind_are_compared(viewer: Viewer, folder: Path) -> None:
    places = ["faces/all", "swept", "made/audit", "made/gate", "made/hostile"]
    page = viewer.get("compare.html?" + "&".join(f"run={identifier(one)}" for one in places)).text
    assert "5 runs compared" in page
    assert "Check by check" not in page
    assert page.count("<script") == 0
    assert "8, 0 failed, 0 missing" in page


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_runs_cannot_be_compared(viewer: Viewer, count: int) -> None:
    answer = viewer.get("compare.html?" + f"run={identifier('swept')}&" * count)
    assert answer.code == 400
    assert "Select two to 12 runs" in answer.text


# --- watching ---------------------------------------------------------------------------------


def noted(done: int, total: int, ago: float = 0.0) -> str:
    stage = {"what": "cells", "done": done, "total": total}
    times = {"started": time.time() - 60 - ago, "updated": time.time() - ago}
    return json.dumps({"format": "leakaudit.progress", "version": 1, **times, "stages": [stage]})


def test_a_running_sweep_is_watched(viewer: Viewer, folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root / "done", RECORDS["attack"])
    sweep = shutil.copytree(folder / "swept", root / "part")
    (sweep / "results.json").unlink()
    for path in list((sweep / "cells").iterdir())[5:]:
        path.unlink()
    for path in (sweep / "cells").iterdir():
        path.touch()
    (sweep / "progress.json").write_text(noted(5, 8))
    with viewing(root) as here:
        page = here.get().text
        assert "In progress" in page
        assert "5 of 8 cells" in page
        watch = here.get(f"watch/{identifier('part')}.html")
        assert watch.headers["refresh"] == "3"
        assert "5 of 8 cells (62%)" in watch.text
        assert watch.text.count("<td>done</td>") == 5
        paused = here.get(f"watch/{identifier('part')}.html?pause=1")
        assert "refresh" not in paused.headers
        shutil.copy(folder / "swept/results.json", sweep / "results.json")
        (sweep / "progress.json").unlink()
        ended = here.get(f"watch/{identifier('part')}.html")
        assert (ended.code, ended.headers["location"]) == (
            303,
            f"../runs/{identifier('part')}.html",
        )


def test_a_sweep_of_an_older_version_shows_its_count(folder: Path, tmp_path: Path) -> None:
    sweep = shutil.copytree(folder / "swept", tmp_path / "part")
    (sweep / "results.json").unlink()
    one = RunIndex(tmp_path).listing().progress[0]
    assert [(stage.done, stage.total) for stage in one.stages] == [(8, 0)]
    assert one.left is None


def test_a_run_that_stopped_is_not_shown_as_running(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/progress.json").write_text(noted(3, 4, ago=5000.0))
    with viewing(tmp_path) as here:
        watch = here.get(f"watch/{identifier('a')}.html")
        assert "refresh" not in watch.headers
        assert "Nothing was written for 83 min" in watch.text


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 60_000, noted(-5, -1), noted(9, 10**18), '{"format": "x"}', "\0"]
)
def test_a_malformed_progress_file_is_survived(tmp_path: Path, text: str) -> None:
    put(tmp_path / "done", RECORDS["attack"])
    (tmp_path / "a").mkdir()
    (tmp_path / "a/progress.json").write_text(text)
    with viewing(tmp_path) as here:
        assert here.get().code == 200
        assert here.get(f"watch/{identifier('a')}.html").code in (200, 404)


def test_a_run_writes_its_progress_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_file, "EVERY", 0.0)
    told = []
    with progress.watching(lambda *step: told.append(step)), progress_file.kept(tmp_path):
        progress.step("attacks", 1, 4)
        progress.step("replays", 2, 6)
        stages = RunIndex(tmp_path).listing().progress[0].stages
        assert [(one.what, one.done, one.total) for one in stages] == [
            ("attacks", 1, 4),
            ("replays", 2, 6),
        ]
    assert list(tmp_path.iterdir()) == []
    assert told == [("attacks", 1, 4), ("replays", 2, 6)]


def test_an_interrupted_run_removes_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_file, "EVERY", 0.0)

    def run() -> None:
        with progress_file.kept(tmp_path):
            progress.step("attacks", 1, 4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert list(tmp_path.iterdir()) == []


# --- export -----------------------------------------------------------------------------------


def test_an_export_has_the_list_and_every_report(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["view", str(folder), "--export", str(site), "-q"]) == 0
    page = (site / "index.html").read_text()
    linked = re.findall(r'href="(runs/\w+\.html)"', page)
    assert len(linked) == 7
    for name in linked:
        text = (site / name).read_text()
        assert '<a href="../index.html">' in text
    assert len(list((site / "runs").iterdir())) == 7
    assert "compare" not in "".join(re.findall(r'(?:action|href)="([^"]*)"', page)).replace(
        "compare.html", "", 1
    )
    assert str(folder) not in page
    assert 'http-equiv="Content-Security-Policy"' in page


def test_an_export_does_not_follow_links(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    theirs = other / "0123456789abcdef.html"
    theirs.write_text("mine")
    site = tmp_path / "site"
    assert main(["view", str(folder), "--export", str(site), "-q"]) == 0
    shutil.rmtree(site / "runs")
    (site / "runs").symlink_to(other)
    assert main(["view", str(folder), "--export", str(site), "-q"]) == 2
    link = tmp_path / "link"
    link.symlink_to(other)
    assert main(["view", str(folder), "--export", str(link), "-q"]) == 2
    assert [file.name for file in other.iterdir()] == [theirs.name]
    assert theirs.read_text() == "mine"


def test_an_export_is_repeated_and_other_files_are_kept(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(folder / "faces/all", root / "a")
    put(root / "b", RECORDS["failed"])
    site = tmp_path / "site"
    quiet = lambda *step: None  # noqa: E731
    assert export(root, site, quiet).pages == 2
    (site / "runs/own.html").write_text("mine")
    shutil.rmtree(root / "b")
    assert export(root, site, quiet).pages == 1
    assert {path.name for path in (site / "runs").iterdir()} == {
        "own.html",
        f"{identifier('a')}.html",
    }
    other = tmp_path / "other"
    put(other, {})
    with pytest.raises(LeakauditError, match="contains other files"):
        export(root, other, quiet)


def test_an_export_names_the_runs_without_a_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    shutil.copytree(folder / "faces/all", root / "a")
    (root / "a/reconstructions.npz").write_bytes(b"other")
    assert main(["view", str(root), "--export", str(tmp_path / "site")]) == 3
    assert "a: a/reconstructions.npz is not the file that" in capsys.readouterr().err
    page = (tmp_path / "site/runs" / f"{identifier('a')}.html").read_text()
    assert "The report cannot be shown" in page


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [True, False])
def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: bool
) -> None:
    if make:
        (tmp_path / "x").mkdir()
    assert main(["view", str(tmp_path / "x")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert ("contains no run" if make else "found none") in said.err


def test_a_missing_extra_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "find_spec", lambda name: None if name == "uvicorn" else True)
    assert main(["view", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs uvicorn; install the extra: pip install 'leakaudit[view]'" in said


def test_a_port_that_is_taken_is_one_line(
    folder: Path, viewer: Viewer, capsys: pytest.CaptureFixture[str]
) -> None:
    for port in (viewer.port, 70_000):
        assert main(["view", str(folder), "--port", str(port)]) == 2
        assert f"--port {port} cannot be used" in capsys.readouterr().err


def ended(group: int) -> bool:
    """Whether all processes of a group end within ten seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_ends_the_viewer_and_its_processes(folder: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "leakaudit", "view", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert started.stderr is not None
    address = started.stdout.readline().strip()
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{43})/", address)
    assert found is not None, address
    page = urllib.request.urlopen(address).read().decode()
    assert "faces/" in html.unescape(page)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    assert started.wait(30) == 0
    said = started.stderr.read()
    assert "Traceback" not in said
    assert said.endswith("ended\n")
    started.stdout.close()
    started.stderr.close()
    assert ended(started.pid)


BROWSER = """#!/bin/sh
printf '%s\\n' "$@" > "$SEEN.new"
mv "$SEEN.new" "$SEEN"
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_line_of_the_browser_does_not_contain_the_token(
    folder: Path, tmp_path: Path, end: signal.Signals
) -> None:
    """Every user of the machine can read it; the page that it names is its owner's."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(BROWSER)
    browser.chmod(0o700)
    started = subprocess.Popen(
        [sys.executable, "-m", "leakaudit", "view", str(folder), "--open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "BROWSER": f"{browser} %s", "SEEN": str(seen)},
    )
    assert started.stdout is not None
    address = started.stdout.readline().strip()
    token = address.split("/")[-2]
    for _ in range(300):
        if seen.exists():
            break
        time.sleep(0.1)
    asked = seen.read_text().splitlines()
    assert len(asked) == 1
    assert token not in asked[0]
    page = Path(urllib.parse.unquote(asked[0].removeprefix("file://")))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    text = page.read_text()
    assert f'<meta http-equiv="refresh" content="0; url={address}">' in text
    assert "<script" not in text
    # What a browser sends when a page of the disk leads it to the address.
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        assert answer.status == 200
    os.killpg(started.pid, end)
    started.communicate(timeout=30)
    assert not page.parent.exists()


def test_queries_are_written_as_they_are_read() -> None:
    query = Query(q="a b", kind="audit", sort="worst")
    assert query.address() == "?q=a+b&kind=audit&sort=worst"
    assert Query.of({"sort": "x", "q": "a\nb" + "c" * 500, "other": "1"}).sort == "newest"
