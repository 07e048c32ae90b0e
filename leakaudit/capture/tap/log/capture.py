"""The recording in one process of a tapped program: events, omissions and time spent."""

from __future__ import annotations

import atexit
import copy
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from leakaudit.capture.tap.log.finder import Finder
from leakaudit.capture.tap.log.layers import (
    LARGE,
    NOTE,
    PartialStream,
    Selection,
    described,
    place_of,
    select,
)
from leakaudit.capture.tap.log.writing import LEFT_OUT, Log

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")
Notes = dict[str, Any]
Translate = Callable[[str, Any, Notes], tuple[str, Notes]]  # op, tensor and notes -> op and notes
HOOK = "hook"  # the note of a message that a communication hook sends; its value names the hook
SPENT = "spent"  # the word for the epsilon that a framework states


@dataclass(frozen=True)
class CaptureSettings:
    """What the processes of a program keep of their messages."""

    ranks: list[int] | None = None  # with payloads to keep; None keeps all
    rounds: tuple[int, int] | None = None  # first and stop of those with payloads to keep
    start: int = 1
    # Lengths of the tensors that make up a model, followed by the model's own length; None if it is
    # not described: every message then counts as its own round.
    sizes: list[int] | None = None
    max_bytes: float | None = None  # of the payloads of all processes together
    receive: bool = False
    layers: list[str] | None = None  # see `layers.select`
    names: list[str] | None = None  # of the described parameters, in the order of `sizes`
    model: bool = False
    seed: int = 0
    quiet: bool = False


class Capture:
    """The tap of this process; the log is opened with the first event."""

    # None of its methods raises into the program: an error ends the recording, with a line on
    # stderr.

    def __init__(
        self,
        folder: str,
        settings: CaptureSettings | None = None,
        rank: int | None = None,  # None for that of torch.distributed or of its launcher
        run: str = "",
    ) -> None:
        self.folder = folder
        self.settings = settings = settings or CaptureSettings()
        self._selection = None
        if settings.names is not None and settings.sizes is not None:
            self._selection = select(
                settings.names, settings.sizes[:-1], settings.layers, settings.seed
            )
        self._partial: dict[tuple[Any, ...], PartialStream] = {}  # by channel, with a selection
        self.run = run
        self.model: Finder | None = None
        if settings.model:
            self.model = Finder(folder)
        self.training: Any = None  # `hooks.training.Training`, if it watches this process
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
        """Log one tensor, or an event without one.

        at: position of the message on its channel, if known; sender: rank that sent it, if another.
        """
        if not self.listens:
            return
        if self.model is not None:
            self.safely(self.model.travels, value)
        begun = time.perf_counter()
        try:
            log = self._log or self._open()
            self._note_training(log)
            op, notes = self._translated(op, value, notes)
            at = notes.pop("at", at)
            if LEFT_OUT not in notes:
                lane = str(notes.get("lane", ""))
                owner = log.rank if sender is None else sender
                reason = self._left_out(owner, op, value, (lane, peer, tag), at)
                if reason:
                    notes[LEFT_OUT] = reason
            for part, noted in self._parts(op, value, peer, notes):
                log.write(op, part, peer, tag, **noted)
            log.spent += time.perf_counter() - begun
        except Exception as error:
            self._stop(error)

    def _note_training(self, log: Log) -> None:
        if self.training is not None:
            for op, notes in self.training.taken():
                log.write(op, **notes)

    def safely(self, call: Callable[..., Result], *args: Any) -> Result | None:
        """Call a function of the tap; its error ends the recording, not the program."""
        # Its time counts as spent in the tap.
        if self._broken:
            return None
        begun = time.perf_counter()
        before = self._spent
        try:
            return call(*args)
        except Exception as error:
            self._stop(error)
            return None
        finally:
            if self._log is not None:
                # Includes the events that the function logged, which have counted themselves.
                self._log.spent = before + time.perf_counter() - begun

    @property
    def listens(self) -> bool:
        """Whether an event of this thread is logged now."""
        return not (self._broken or getattr(self._here, "unlogged", False))

    @property
    def _spent(self) -> float:
        return 0.0 if self._log is None else self._log.spent

    def _stop(self, error: Exception) -> None:
        self._broken = True
        sys.stderr.write(f"leakaudit tap: recording of process {os.getpid()} stopped: {error}\n")

    def unlogged(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call a function without logging the messages that it sends."""
        before = getattr(self._here, "unlogged", False)
        self._here.unlogged = True
        try:
            return call(*args)
        finally:
            self._here.unlogged = before

    def within_hook(
        self, name: str, translate: Translate, call: Callable[..., Any], *args: Any
    ) -> Any:
        """Call a communication hook, and translate the messages that it sends before it returns."""
        # What it sends later, in other threads, is logged as its own.
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
        dist = _distributed()
        if dist is not None:
            return int(dist.get_world_size())
        return int(os.environ.get("WORLD_SIZE", "1"))

    def _open(self) -> Log:
        world = self._world
        share = None if self.settings.max_bytes is None else self.settings.max_bytes / world
        about: dict[str, Any] = {"world": world, "program": os.path.basename(sys.argv[0])}
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
        """Return a recording with the same settings, for one of several nodes in this process."""
        other = copy.copy(self)
        other._rank = rank
        other.training = None
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
        if self.settings.ranks is not None and rank not in self.settings.ranks:
            return "ranks"
        if self.settings.rounds is None or value is None:
            return ""
        if at is None:
            at = self._place(op, value, *channel)
        # Tensors that are not part of a model, and the initial model (round 0), are always kept.
        if at is None or at + self.settings.start == 0:
            return ""
        first, stop = self.settings.rounds
        if first <= at + self.settings.start < stop:
            return ""
        return "rounds"

    def _place(self, op: str, value: Tensor, lane: str, peer: int | None, tag: int) -> int | None:
        """Return the position, on its channel, of the message to which a tensor belongs.

        None if the tensor is not part of a model.
        """
        if self.settings.sizes is None:
            place = self._seen[op, lane, peer, tag]
            self._seen[op, lane, peer, tag] += 1
            return place
        count = int(value.numel())
        before = self._seen[op, lane, peer]
        if count not in self.settings.sizes:
            return None
        self._seen[op, lane, peer] += count
        return before // self.settings.sizes[-1]

    def _parts(
        self, op: str, value: Tensor | None, peer: int | None, notes: Notes
    ) -> list[tuple[Tensor | None, Notes]]:
        """Return what to write of a tensor: of a model or one of its parameters, what is chosen."""
        # Hooks cut by themselves. The arrays of a model's state are not all parameters.
        by_itself = "parameters" in notes or "arrays" in notes
        if self._selection is None or value is None or by_itself:
            return [(value, notes)]
        sizes = self._selection.sizes
        length = sum(sizes)
        count = int(value.numel())
        channel = (NOTE, op, str(notes.get("lane", "")), peer)
        before = self._seen[channel]
        places = range(len(sizes))
        if count != length:
            place = place_of(sizes, before % length, count)
            if place is None:
                return [(value, notes)]
            places = range(place, place + 1)
        self._seen[channel] = before + count
        if channel not in self._partial:
            self._partial[channel] = PartialStream(self._selection, self.first, whole=True)
        pieces = value.detach().reshape(-1).split([sizes[place] for place in places])
        parts = self._partial[channel].split(
            dict(zip(places, pieces, strict=True)),
            before // length,
            last=places.stop == len(sizes),
            sketched=LEFT_OUT not in notes,
        )
        shared = {**notes, NOTE: True, "of": len(sizes)}
        return [(part, {**shared, **noted}) for part, noted in parts]

    @property
    def first(self) -> int:
        """Position, on its channel, of the first message that is kept: its model is kept whole."""
        if self.settings.rounds is None:
            return 0
        return max(0, self.settings.rounds[0] - self.settings.start)

    def selection(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        layers: Sequence[str] | None,
        trained: Sequence[int],
        what: str,
    ) -> Selection | None:
        """Return which parameters of a model to keep, None for all, and say so if it is large."""
        found = select(names, sizes, layers, self.settings.seed, trained)
        numbers = sum(sizes[place] for place in trained)
        if what and not self.settings.quiet and (found is not None or numbers > LARGE):
            size = 4 * (numbers if found is None else found.numbers) / 1e6
            said = f"{described(found, numbers)}; a message takes {size:.3g} MB (float32)"
            sys.stderr.write(f"leakaudit tap: {what}: {said}\n")
        return found

    def _forked(self) -> None:
        """Start a new log in the child of a fork; the parent continues its own."""
        if self._log is not None:
            self._log.abandon()
        self._log = None
        self._seen = defaultdict(int)
        self._partial = {}
        self._here = threading.local()
        self._hooks = []
        if self.training is not None:
            self.training.taken()  # of the parent

    def end(self) -> None:
        """Close the log; nothing is logged afterwards."""
        if self._log is not None and self._log.owner == os.getpid():
            self._note_training(self._log)
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
