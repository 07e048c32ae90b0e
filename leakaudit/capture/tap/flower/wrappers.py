"""Record one client or one server of Flower, with one line in the program.

A client that does not control the others:

    from leakaudit.capture.tap.flower import client_mod

    app = ClientApp(mods=[client_mod("client.tap")])

A server; the tap itself needs no line, so this is for servers that it cannot start:

    from leakaudit.capture.tap.flower import server_strategy

    strategy = server_strategy(FedAvg(), "server.tap")

Both write a log as the tap does; ``leakaudit tap describe`` and ``merge`` read it. Use a new folder
for each run. This module imports neither torch nor flwr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from leakaudit.capture.tap.exchanges import (
    SERVER,
    TRAIN,
    ExchangePlace,
    capture_of,
    wrap,
)
from leakaudit.capture.tap.flower.messages import (
    FlowerServerTap,
    kind_of,
    round_in,
    write,
    write_fits,
)

Strategy = TypeVar("Strategy")


def _record(
    folder: str, rank: int | None, message: Any, context: Any, call_next: Callable[..., Any]
) -> Any:
    if rank is None:
        rank = SERVER + 1 + int(context.node_config.get("partition-id", 0))
    place = ExchangePlace(kind_of(message), round_in(message), rank, str(context.node_id))
    capture = capture_of(folder, rank, str(context.run_id))
    capture.safely(write, capture, "recv", [(message, place)])
    reply = call_next(message, context)
    capture.safely(write, capture, "send", [(reply, place)])
    return reply


def client_mod(folder: str, rank: int | None = None) -> Callable[[Any, Any, Any], Any]:
    """Return a mod that records what a client receives and answers.

    It records what the mods before it in the list make of the answers of those behind it: as the
    first mod, it records what is sent.

    Args:
        rank: rank of the client; None for 1 + its partition in a simulation, else 1.
    """
    return partial(_record, folder, rank)  # which can be pickled


def server_strategy(strategy: Strategy, folder: str) -> Strategy:
    """Make a strategy record what it sends to clients, and what they answer."""
    tap = FlowerServerTap(capture_of(folder, SERVER))
    kind: Any = strategy
    if hasattr(kind, "configure_train"):
        _record_messages(kind, tap)
    else:
        _record_fits(kind, tap)
    return strategy


def _record_messages(strategy: Any, tap: FlowerServerTap) -> None:
    def configured(configure: Callable[..., Any], *args: Any, **named: Any) -> Any:
        messages = list(configure(*args, **named))
        tap.capture.safely(tap.instruct, messages)
        return messages

    def aggregated(aggregate: Callable[..., Any], server_round: int, replies: Any) -> Any:
        replies = list(replies)
        tap.capture.safely(tap.receive, replies)
        return aggregate(server_round, replies)

    wrap(strategy, "configure_train", configured)
    wrap(strategy, "aggregate_train", aggregated)


def _record_fits(strategy: Any, tap: FlowerServerTap) -> None:
    def log(op: str, server_round: int, pairs: Iterable[Any]) -> None:
        fits: list[tuple[ExchangePlace, Any]] = []
        for client, fit in sorted(pairs, key=lambda pair: str(pair[0].cid)):
            node = getattr(client, "node_id", None) or hash(client.cid)
            place = ExchangePlace(TRAIN, server_round, tap.talk.rank(node), str(client.cid))
            fits.append((place, fit))
        write_fits(tap.capture, op, fits)

    def configured(
        configure: Callable[..., Any], server_round: int, *args: Any, **named: Any
    ) -> Any:
        pairs = list(configure(server_round, *args, **named))
        tap.capture.safely(log, "send", server_round, pairs)
        return pairs

    def aggregated(
        aggregate: Callable[..., Any], server_round: int, results: Any, failures: Any
    ) -> Any:
        tap.capture.safely(log, "recv", server_round, results)
        return aggregate(server_round, results, failures)

    wrap(strategy, "configure_fit", configured)
    wrap(strategy, "aggregate_fit", aggregated)
