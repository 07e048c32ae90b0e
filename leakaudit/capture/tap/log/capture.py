"""The recording in one process of a tapped program: events, omissions and time spent."""

from __future__ import annotations

import atexit
import copy
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from leakaudit.capture.tap.log.layers import NOTE, chosen, place_of
from leakaudit.capture.tap.log.writing import LEFT_OUT, Log

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")
Notes = dict[str, Any]
Translate = Callable[[str, Any, Notes], tuple[str, Notes]]  # op, tensor and notes -> op and notes
HOOK = "hook"  # the note of a message that a communication hook sends; its value names the hook


class Capture:
    """The tap of this process; the log is opened with the first event.

    None of its methods raises into the program: an error ends the recording, with a line on stderr.

    Args:
        folder: folder of the logs.
        ranks: ranks with payloads to keep; None keeps all.
        rounds: (first, stop) of the rounds with payloads to keep; None keeps all.
        start: number of the first round.
        sizes: lengths of the tensors that make up a model, followed by the model's own length.
            None if the model is not described: every message then counts as its own round.
        max_bytes: limit on the payloads of all processes together; None for no limit.
        receive: whether received messages are logged too.
        layers: parameters to keep, see `layers.chosen`; None keeps all.
        names: names of the described model's parameters, in the order of `sizes`.
        rank: rank of this process; None for that of torch.distributed or of its launcher.
        run: the run to which the process belongs, if several processes share a rank.
    """

    def __init__(
        self,
        folder: str,
        ranks: list[int] | None = None,
        rounds: tuple[int, int] | None = None,
        start: int = 1,
        sizes: list[int] | None = None,
        max_bytes: float | None = None,
        receive: bool = False,
        layers: list[str] | None = None,
        names: list[str] | None = None,
        rank: int | None = None,
        run: str = "",
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        self.rounds = rounds
        self.start = start
        self.sizes = sizes
        self.max_bytes = max_bytes
        self.receive = receive
        self.layers = layers
        self._chosen = None
        if names is not None:
            self._chosen = chosen(names, layers)
        self.run = run
        self._rank = rank
        # With `sizes`: numbers sent so far, by (op, lane, peer); else messages, by tag, too.
        self._seen: dict[tuple[Any, ...], int] = defaultdict(int)
        self._log: Log | None = None
        self._broken = False
        self._here = threading.local()  # how calls in this thread are logged
        self._hooks: list[str] = []  # communication hooks whose result is not there yet
        os.register_at_fork(after_in_child=self._forked)

    def event(
        self,
        op: str,
        value: Tensor | None,
        peer: int | None = None,
        tag: int = 0,
        at: int | None = None,
        sender: int | None = None,
        **notes: Any,
    ) -> None:
        """Log one tensor.

        Args:
            op: send, recv, allreduce, broadcast or another word.
            value: the payload; None for an event without one.
            peer: the other rank, if there is one.
            tag: tag of the message.
            at: position of the message on its channel; None counts it here.
            sender: rank that sent it; None for this process.
            notes: plain values to log with the event.
        """
        begun = time.perf_counter()
        if self._broken or getattr(self._here, "unlogged", False):
            return
        try:
            log = self._log or self._open()
            op, notes = self._translated(op, value, notes)
            at = notes.pop("at", at)
            if LEFT_OUT not in notes:
                lane = str(notes.get("lane", ""))
                owner = log.rank if sender is None else sender
                reason = self._left_out(owner, op, value, (lane, peer, tag), at)
                if reason:
                    notes[LEFT_OUT] = reason
            if self._chosen is not None and "parameters" not in notes:
                value, notes = self._cut(op, value, peer, notes)
            log.write(op, value, peer, tag, **notes)
            log.spent += time.perf_counter() - begun
        except Exception as error:
            self._stop(error)

    def safely(self, call: Callable[..., Result], *args: Any) -> Result | None:
        """Call a function of the tap; its error ends the recording, not the program.

        Args:
            call: the function.
            args: its arguments.

        Returns:
            The result of the function; None after an error.
        """
        if self._broken:
            return None
        try:
            return call(*args)
        except Exception as error:
            self._stop(error)
            return None

    def _stop(self, error: Exception) -> None:
        self._broken = True
        sys.stderr.write(f"leakaudit tap: recording of process {os.getpid()} stopped: {error}\n")

    def unlogged(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call a function without logging the messages that it sends.

        Args:
            call: the function.
            args: its arguments.

        Returns:
            The result of the function.
        """
        before = getattr(self._here, "unlogged", False)
        self._here.unlogged = True
        try:
            return call(*args)
        finally:
            self._here.unlogged = before

    def within_hook(
        self, name: str, translate: Translate, call: Callable[..., Any], *args: Any
    ) -> Any:
        """Call a communication hook, which sends gradients in a form of its own.

        Args:
            name: name of the hook.
            translate: what the messages are that the hook sends before it returns. What it sends
                later, in other threads, is logged as its own.
            call: the hook.
            args: its arguments.

        Returns:
            The future of the hook.
        """
        self._hooks.append(name)
        self._here.translate = translate
        try:
            future = call(*args)
        except BaseException:
            self._hooks.remove(name)
            raise
        finally:
            self._here.translate = None
        future.add_done_callback(lambda _: self._hooks.remove(name))
        return future

    def _translated(self, op: str, value: Any, notes: Notes) -> tuple[str, Notes]:
        """Return op and notes of an event, which differ for what a communication hook sends."""
        translate = getattr(self._here, "translate", None)
        if translate is not None:
            translated: tuple[str, Notes] = translate(op, value, notes)
            return translated
        if self._hooks and op not in ("ddp", "model"):
            return op, {**notes, HOOK: self._hooks[0]}
        return op, notes

    @property
    def rank(self) -> int:
        """Rank of this process in the whole program."""
        if self._rank is not None:
            return self._rank
        dist = _distributed()
        if dist is not None:
            return int(dist.get_rank())
        return int(os.environ.get("RANK", "0"))

    @property
    def _world(self) -> int:
        """Number of processes of the program."""
        dist = _distributed()
        if dist is not None:
            return int(dist.get_world_size())
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _open(self) -> Log:
        world = self._world
        share = None
        if self.max_bytes is not None:
            share = self.max_bytes / world
        program = os.path.basename(sys.argv[0])
        about: dict[str, Any] = {"world": world, "program": program}
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        if restart.isdecimal():
            about["restart"] = int(restart)
        if self.run:
            about["run"] = self.run
        self._log = Log(self.folder, self.rank, share, **about)
        util = sys.modules.get("multiprocessing.util")
        if util is not None and _is_child():
            # Children of multiprocessing exit without running atexit.
            util.Finalize(None, self.end, exitpriority=-100)
        else:
            atexit.register(self.end)
        return self._log

    def of_rank(self, rank: int) -> Capture:
        """Return a recording with the same settings, for one of several nodes in this process.

        Args:
            rank: rank of the node.
        """
        other = copy.copy(self)
        other._rank = rank
        other._forked()
        os.register_at_fork(after_in_child=other._forked)
        return other

    def _left_out(
        self,
        rank: int,
        op: str,
        value: Tensor | None,
        channel: tuple[str, int | None, int],
        at: int | None,
    ) -> str:
        """Return why a payload is not kept; empty if it is."""
        if self.ranks is not None and rank not in self.ranks:
            return "ranks"
        if self.rounds is None or value is None:
            return ""
        if at is None:
            at = self._place(op, value, *channel)
        # Tensors that are not part of a model, and the initial model (round 0), are always kept.
        if at is None or at + self.start == 0:
            return ""
        first, stop = self.rounds
        if first <= at + self.start < stop:
            return ""
        return "rounds"

    def _place(self, op: str, value: Tensor, lane: str, peer: int | None, tag: int) -> int | None:
        """Return the position, on its channel, of the message to which a tensor belongs.

        None if the tensor is not part of a model.
        """
        if self.sizes is None:
            place = self._seen[op, lane, peer, tag]
            self._seen[op, lane, peer, tag] += 1
            return place
        count = int(value.numel())
        before = self._seen[op, lane, peer]
        if count not in self.sizes:
            return None
        self._seen[op, lane, peer] += count
        return before // self.sizes[-1]

    def _cut(
        self, op: str, value: Tensor | None, peer: int | None, notes: Notes
    ) -> tuple[Tensor | None, Notes]:
        """Return the chosen parameters of a tensor that is a model or one of its parameters."""
        if self.sizes is None or self._chosen is None or value is None:
            return value, notes
        sizes = self.sizes[:-1]
        whole = self.sizes[-1]
        count = int(value.numel())
        lane = str(notes.get("lane", ""))
        channel = (NOTE, op, lane, peer)
        sent = self._seen[channel] % whole
        if count == whole:
            places = range(len(sizes))
        else:
            place = place_of(sizes, sent, count)
            if place is None:
                return value, notes
            places = range(place, place + 1)
        self._seen[channel] = (sent + count) % whole
        flat = value.detach().reshape(-1)
        parts = flat.split([sizes[place] for place in places])
        held = [place for place in places if place in self._chosen]
        kept = [parts[place - places.start] for place in held]
        last = places.stop == len(sizes)
        notes = {**notes, NOTE: True, "parameters": held, "of": len(sizes), "last": last}
        import torch

        return torch.cat([flat[:0], *kept]), notes

    def _forked(self) -> None:
        """Start a new log in the child of a fork; the parent continues its own."""
        if self._log is not None:
            self._log.abandon()
        self._log = None
        self._seen = defaultdict(int)
        self._here = threading.local()
        self._hooks = []

    def end(self) -> None:
        """Close the log; nothing is logged afterwards."""
        if self._log is not None and self._log.owner == os.getpid():
            self._log.close()
            self._log = None
            self._broken = True


def _distributed() -> Any:
    """Return torch.distributed if the program uses it; it is never imported here."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _is_child() -> bool:
    from multiprocessing.process import parent_process

    return parent_process() is not None
