"""Logs of a model with frozen parameters, for a description of the trained parameters only.

The hooks number all parameters of a model. A model whose frozen parameters are constants, such as a
torch.export program, consists of the others, which are all that travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakaudit.capture.tap.log.event import Event
from leakaudit.capture.tap.log.reading import RankLog

PLACES = "parameters"
ABOUT_ALL = ("sizes", "names")  # notes with an entry for each parameter


def only(logs: Sequence[RankLog], names: Sequence[str]) -> tuple[RankLog, ...]:
    """Number the parameters of a model among those that are trained.

    Returns:
        The logs; unchanged, except for the streams whose trained parameters have these names.
    """
    places = _places(logs, names)
    if not places:
        return tuple(logs)
    return tuple(
        replace(log, events=tuple(_numbered(event, places) for event in log.events)) for log in logs
    )


def _places(logs: Sequence[RankLog], names: Sequence[str]) -> Mapping[str, dict[int, int]]:
    """Return, for each stream, the place of a parameter among all -> its place in `names`."""
    found: dict[str, dict[int, int]] = {}
    for log in logs:
        for event in log.events:
            everything = event.notes.get("names")
            frozen = event.notes.get("frozen")
            if not isinstance(everything, list) or not isinstance(frozen, list) or not frozen:
                continue
            trained = [k for k, name in enumerate(everything) if name not in frozen]
            if [everything[k] for k in trained] == list(names):
                lane = str(event.notes.get("lane", ""))
                found[lane] = {k: place for place, k in enumerate(trained)}
    return found


def _numbered(event: Event, places: Mapping[str, dict[int, int]]) -> Event:
    place = places.get(str(event.notes.get("lane", "")))
    held = event.notes.get(PLACES)
    if place is None or not isinstance(held, list) or not all(k in place for k in held):
        return event
    notes: dict[str, Any] = dict(event.notes)
    for name in ABOUT_ALL:
        noted = notes.get(name)
        if isinstance(noted, list) and len(noted) > max(place):
            notes[name] = [noted[k] for k in place]
    notes.pop("frozen", None)
    notes |= {PLACES: [place[k] for k in held], "of": len(place)}
    return replace(event, notes=notes)
