"""Places for connections that have not shown the token, so that they take none of a reader's.

Every process of the machine can connect, and one that sends half a request would keep its place
forever. So a connection without the token ends after a few seconds, and if there are too many, a
new one takes the place of the oldest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 5.0  # a browser needs milliseconds on the loopback interface: a choice
PLACES = 16  # more than the six connections that a browser opens to one server: a choice
Client: TypeAlias = tuple[str, int]  # address and port


@dataclass(frozen=True)
class _Stranger:
    """One connection without the token, and what ends it."""

    transport: asyncio.Transport
    deadline: asyncio.TimerHandle


class UntrustedConnections:
    """The connections that have not sent a request with the token yet, the oldest first."""

    def __init__(self, seconds: float = SECONDS, places: int = PLACES) -> None:
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


def protocol(strangers: UntrustedConnections) -> type[H11Protocol]:
    """Return what handles the connections of a server."""

    class Connection(H11Protocol):
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

    return Connection
