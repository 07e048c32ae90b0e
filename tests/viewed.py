"""A viewer that tests start in this process, and the requests that they send to it."""

from __future__ import annotations

import copy
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakaudit.reporting.viewing import server
from leakaudit.reporting.viewing.summaries import identifier

TOKEN = "a-token-of-the-tests"


@dataclass(frozen=True)
class Answer:
    """What the viewer answers."""

    code: int
    text: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Viewer:
    """A running viewer."""

    port: int
    root: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{TOKEN}/"

    def ask(
        self, path: str, method: str = "GET", host: str | None = None, body: bytes | None = None
    ) -> Answer:
        """Send one request; the path is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=150)
        connection.putrequest(method, path, skip_host=True)
        for one in [f"127.0.0.1:{self.port}"] if host is None else host.split(","):
            if one:
                connection.putheader("Host", one)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        found = Answer(answer.status, answer.read().decode(), headers)
        connection.close()
        return found

    def get(self, path: str = "") -> Answer:
        """Ask for a page below the token."""
        return self.ask(f"/{TOKEN}/{path}")

    def report(self, place: str) -> Answer:
        """Ask for the report of a run."""
        return self.get(f"runs/{identifier(place)}.html")


@contextmanager
def viewing(root: Path, **limits: Any) -> Iterator[Viewer]:
    """Serve a folder while the block runs."""
    with server.listen(0) as listener:
        port = listener.getsockname()[1]
        made = server.server(server.application(root, TOKEN, port, **limits))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 30
            while not made.started and time.monotonic() < deadline:
                time.sleep(0.01)
            yield Viewer(port, root)
        finally:
            made.should_exit = True
            thread.join(30)


def bare(of: Mapping[str, Any]) -> dict[str, Any]:
    """A made-up record without the images that it names."""
    made = copy.deepcopy(dict(of))
    made |= {"picture": None, "originals": None, "files": {}}
    for finding in made["findings"]:
        finding["images"] = None
    return made


def put(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write a record, as it is, to results.json of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def rows(page: str) -> list[str]:
    """The places of the runs of a list, in their order."""
    found = []
    for part in page.split('aria-label="Compare ')[1:]:
        found.append(part.split('"')[0])
    return found
