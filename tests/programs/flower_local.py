"""Run an app of Flower in one process: its own server and client code, with a grid of our own.

    python flower_local.py program.py [options of the program]

A simulation starts Ray, which takes a minute on a small machine; this takes seconds. The program
defines `server_app` and `client_app`.
"""

# What flwr defines has no types where it is not installed.
# mypy: disable-error-code="misc, untyped-decorator"

import runpy
import sys
from collections.abc import Iterable
from copy import deepcopy
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

NODES = (6004, 7001, 8003, 9002)  # numbers as Flower gives them


class LocalGrid(Grid):
    """A grid whose clients run when their replies are pulled.

    Args:
        client: the app of all clients.
        count: number of clients.
    """

    def __init__(self, client: ClientApp, count: int) -> None:
        self.client = client
        self.waiting: dict[str, Message] = {}
        self.contexts = {
            node: Context(1, node, UserConfig({"partition-id": k}), RecordDict(), UserConfig())
            for k, node in enumerate(NODES[:count])
        }

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """Return the only run."""
        return Run.create_empty(1)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the clients' numbers."""
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return nothing: no strategy asks."""
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep the instructions, and return their numbers."""
        numbers = []
        for message in messages:
            number = str(uuid4())
            message.metadata.__dict__["_message_id"] = number
            self.waiting[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the clients that were asked, and return their replies."""
        replies = []
        for number in list(message_ids):
            message = self.waiting.pop(number)
            context = self.contexts[message.metadata.dst_node_id]
            replies.append(self.client(deepcopy(message), context))
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send all instructions, and wait for all replies."""
        return list(self.pull_messages(self.push_messages(messages)))


def main() -> None:
    """Run the program's app."""
    sys.argv = sys.argv[1:]
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = 0
    app = runpy.run_path(sys.argv[0], run_name="app")
    if "save" in app:
        app["save"]()
    grid = LocalGrid(app["client_app"], app["args"].clients)
    app["server_app"](grid, Context(1, 0, UserConfig(), RecordDict(), UserConfig()))


if __name__ == "__main__":
    main()
