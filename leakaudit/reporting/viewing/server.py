"""The server of the viewer: on the loopback interface, read-only, with a secret in its address.

Folders are found by identifiers that the list contains: no part of an address becomes a path.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.findings.comparison import ResultsComparison
from leakaudit.reporting.viewing import compare, pages, running
from leakaudit.reporting.viewing.filters import Query
from leakaudit.reporting.viewing.index import FolderListing, RunIndex
from leakaudit.reporting.viewing.reports import Reports
from leakaudit.reporting.viewing.summaries import RunSummary

LOOPBACK = "127.0.0.1"
METHODS = ("GET", "HEAD")
SECONDS = 5.0  # a browser needs milliseconds on the loopback interface: a choice
PLACES = 16  # more than the six connections that a browser opens to one server: a choice
Client: TypeAlias = tuple[str, int]  # address and port
CONNECTIONS = 64  # connections at the same time, `PLACES` of them without the token
KEEP_ALIVE = 5  # seconds that a connection with the token stays open between two requests
QUERY = 8192  # bytes of a query
# Headers of every answer. No other page can embed this one, and no cache keeps it.
HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
EMBEDDED = "; frame-ancestors 'none'"  # only a header can forbid this


@dataclass(frozen=True)
class _Stranger:
    """One connection without the token, and what ends it."""

    transport: asyncio.Transport
    deadline: asyncio.TimerHandle


class _UntrustedConnections:
    """The connections that have not sent a request with the token yet, the oldest first.

    Every process of the machine can connect, and one that sends half a request would keep its place
    forever. So a connection without the token ends after a few seconds, and if there are too many,
    a new one takes the place of the oldest.
    """

    def __init__(self, seconds: float, places: int) -> None:
        """Begin without connections."""
        self.seconds = seconds
        self.places = places
        self._present: dict[Client, _Stranger] = {}

    def arrive(self, client: Client, transport: asyncio.Transport) -> None:
        """Note a new connection; if no place is free, the oldest one ends."""
        if len(self._present) >= self.places:
            self._end(next(iter(self._present)))
        deadline = asyncio.get_running_loop().call_later(self.seconds, self._end, client)
        self._present[client] = _Stranger(transport, deadline)

    def leave(self, client: Client) -> None:
        """Forget a connection that has shown the token, or has ended."""
        stranger = self._present.pop(client, None)
        if stranger is not None:
            stranger.deadline.cancel()

    def _end(self, client: Client) -> None:
        stranger = self._present.pop(client)
        stranger.deadline.cancel()
        stranger.transport.abort()


def _protocol(strangers: _UntrustedConnections) -> type[H11Protocol]:
    """Return what handles the connections of a server."""

    class _Connection(H11Protocol):
        """A connection that is a stranger's until it shows the token."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Begin to wait for a request."""
            super().connection_made(transport)
            if self.client is None:  # the client has ended the connection already
                transport.abort()
            else:
                strangers.arrive(self.client, transport)

        def connection_lost(self, exc: Exception | None) -> None:
            """Free the place."""
            if self.client is not None:
                strangers.leave(self.client)
            super().connection_lost(exc)

    return _Connection


class _Guard:
    """Refuses every request that is not one of a reader with the address of the viewer."""

    def __init__(
        self, app: ASGIApp, token: str, port: int, strangers: _UntrustedConnections
    ) -> None:
        """_Guard an application."""
        self._app = app
        self.token = token
        self.strangers = strangers
        self.hosts = frozenset({f"{LOOPBACK}:{port}", f"localhost:{port}"})
        if port == 80:
            self.hosts |= {LOOPBACK, "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                for name, value in HEADERS.items():
                    given.append((name.encode(), value.encode()))
                message = {**message, "headers": given}
            await send(message)

        answer: ASGIApp | None = self._refused(scope)
        if answer is None:
            self.strangers.leave(tuple(scope["client"]))
            answer = self._app
        await answer(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> Response | None:
        # Another name for this address is what a page of a stranger would use (DNS rebinding).
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in self.hosts:
            return _plain("unknown host", 421)
        if scope["method"] not in METHODS:
            return _plain("only GET and HEAD are allowed", 405, {"allow": ", ".join(METHODS)})
        first = scope["path"].lstrip("/").partition("/")[0]
        if not secrets.compare_digest(first.encode("utf-8", "replace"), self.token.encode()):
            return _plain("the address lacks the token that 'leakaudit view' printed", 403)
        if len(scope["query_string"]) > QUERY:
            return _plain("the query is too long", 414)
        return None


def _plain(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal, with which the connection ends: it would otherwise keep its place."""
    own = {**_policy("default-src 'none'"), "connection": "close"}
    return PlainTextResponse(f"{text}\n", status, {**own, **(headers or {})})


def _policy(text: str) -> dict[str, str]:
    return {"content-security-policy": text + EMBEDDED}


class _RunSite:
    """The pages of one folder."""

    def __init__(self, index: RunIndex, reports: Reports) -> None:
        """Prepare the pages."""
        self.index = index
        self.reports = reports

    def routes(self) -> list[Route]:
        """Return the addresses below the token."""
        return [
            Route("/{token}/", self.runs),
            Route("/{token}/index.html", self.runs),
            Route("/{token}/compare.html", self.compare),
            Route("/{token}/runs/{id}.html", self.report),
            Route("/{token}/watch/{id}.html", self.watch),
        ]

    def runs(self, request: Request) -> Response:
        """Answer with the list."""
        asked = request.query_params
        page = asked.get("page", "1")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 1
        text = pages.listed(self.index.listing(), Query.of(asked), self.index.root.name, number)
        headers = _policy(pages.policy(script=True))
        # A reader of the list opens a report next.
        return HTMLResponse(text, headers=headers, background=BackgroundTask(self.reports.warm))

    def report(self, request: Request) -> Response:
        """Answer with the report of a run."""
        listing = self.index.listing()
        run = _run(listing, request.path_params["id"])
        if run is None:
            return _missing("../")
        try:
            page = self.reports.page(listing.paths[run.id])
        except LeakauditError as error:
            text = _relative(str(error), self.index.root)
            shown = pages.message("The report cannot be shown", text, f"../{pages.LIST}")
            return HTMLResponse(shown, 422, _policy(pages.policy()))
        return HTMLResponse(pages.report(run, page.html), headers=_policy(page.policy))

    def compare(self, request: Request) -> Response:
        """Answer with a comparison."""
        listing = self.index.listing()
        asked = dict.fromkeys(request.query_params.getlist("run"))
        runs = []
        for name in asked:
            run = _run(listing, name)
            if run is not None:
                runs.append(run)
        if len(runs) < len(asked):
            return _missing("")
        if not 2 <= len(runs) <= compare.MOST:
            text = f"Select two to {compare.MOST} runs in the list, not {len(runs)}."
            return HTMLResponse(pages.message("Nothing to compare", text), 400, _own())
        changes, why = self._changes(listing, compare.in_time(runs))
        return HTMLResponse(pages.compared(runs, changes, why), headers=_own())

    def _changes(
        self, listing: FolderListing, pair: tuple[RunSummary, RunSummary] | None
    ) -> tuple[tuple[ResultsComparison, int] | None, str]:
        """Compare the checks of two runs; return why not, if they cannot be compared."""
        if pair is None:
            return None, ""
        before, now = pair
        try:
            return self.reports.changes(listing.paths[now.id], listing.paths[before.id]), ""
        except LeakauditError as error:
            return None, _relative(str(error), self.index.root)

    def watch(self, request: Request) -> Response:
        """Answer with the progress of a run; the browser asks again while it is active."""
        listing = self.index.listing()
        name = request.path_params["id"]
        for one in listing.progress:
            if one.id == name:
                paused = "pause" in request.query_params
                cells = running.latest(listing.paths[name]) if one.kind == "sweep" else []
                headers = _own()
                if one.active and not paused:
                    headers["refresh"] = str(pages.REFRESH)
                return HTMLResponse(pages.watched(one, cells, paused), headers=headers)
        if _run(listing, name) is not None:
            return Response(status_code=303, headers={"location": f"../runs/{name}.html"})
        return _missing("../")


def _run(listing: FolderListing, name: str) -> RunSummary | None:
    for run in listing.runs:
        if run.id == name:
            return run
    return None


def _own() -> dict[str, str]:
    return _policy(pages.policy())


def _missing(up: str) -> Response:
    text = "The list does not contain such a run; it may have been removed."
    return HTMLResponse(pages.message("There is no such page", text, up + pages.LIST), 404, _own())


def _relative(text: str, root: Path) -> str:
    return text.replace(f"{root}/", "")


def _not_found(request: Request, error: Exception) -> Response:
    up = "../" * max(0, request.url.path.count("/") - 2)
    return _missing(up)


def application(
    root: Path, token: str, port: int, seconds: float = SECONDS, places: int = PLACES
) -> _Guard:
    """Return the viewer as an ASGI application."""
    index = RunIndex(root)
    if index.listing().empty:
        raise LeakauditError(
            f"{root}: it contains no run; expected a folder with a results.json in any depth, such "
            "as the output folder of 'leakaudit attack'"
        )
    site = _RunSite(index, Reports(index.root))
    app = Starlette(routes=site.routes(), exception_handlers={404: _not_found})
    app.router.redirect_slashes = False
    return _Guard(app, token, port, _UntrustedConnections(seconds, places))


def listen(port: int) -> socket.socket:
    """Reserve a port of the loopback interface."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((LOOPBACK, port))
        made.listen(CONNECTIONS)  # requests wait until the server has started
    except (OSError, OverflowError) as error:
        made.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise LeakauditError(
            f"--port {port} cannot be used: {reason}; omit it to use any free port"
        ) from None
    return made


def server(app: _Guard) -> uvicorn.Server:
    """Return the server, which is not started yet."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=_protocol(app.strangers),
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
    )
