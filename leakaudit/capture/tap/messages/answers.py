"""What a log says about its program besides the messages: answers without models, and filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from leakaudit.capture.tap.log.capture import SPENT
from leakaudit.capture.tap.log.reading import Event, RankLog
from leakaudit.core.errors import NotUnderstood
from leakaudit.traces import framework_epsilon
from leakaudit.traces.framework_epsilon import FrameworkEpsilon

SUMS = ("secagg_mod", "secaggplus_mod")  # mods of flwr that mask what clients send
NOISE = ("LocalDpMod", "Opacus")  # mods of flwr, and optimisers, that add noise
CLIPPING = ("fixedclipping_mod", "adaptiveclipping_mod", "Opacus without noise")
PLAIN = ("RecordMessages", "ConvertWeights", "DXOBlocker")  # filters that change no number
FILTERS = {  # what others do to a model on its way
    "SVTPrivacy": "adds noise and hides parameters",
    "PercentilePrivacy": "clips and hides parameters",
    "ExcludeVars": "hides parameters",
    "HEModelEncryptor": "encrypts",
    "HEModelDecryptor": "decrypts",
    "ModelQuantizer": "rounds",
    "ModelDequantizer": "changes the format",
    "ptq": "rounds",
    "topk": "hides parameters",
    "low_rank": "keeps a part of low rank",
    "local_dp": "clips and adds noise",
    "dp": "clips and adds noise",
}
ENCRYPTION = ("HEModelEncryptor", "HEModelDecryptor")


def _events(logs: Sequence[RankLog], op: str = "") -> Iterator[Event]:
    for log in logs:
        for event in log.events:
            if not op or event.op == op:
                yield event


def check(logs: Sequence[RankLog]) -> None:
    """Reject a log in which clients were asked to train, and answered no arrays."""
    arrays = 0
    others = 0
    names: dict[str, None] = {}
    errors = Counter[str]()
    for event in _events(logs):
        way = event.notes.get("way", event.op)  # of a message without a model: its note
        # The server, which is rank 0, receives the answers that clients send.
        from_client = way == ("recv" if event.rank == 0 else "send")
        if "server" not in event.notes or not (from_client or event.op == "error"):
            continue
        if event.op == "error":
            errors[str(event.notes.get("why", ""))] += 1
        elif "arrays" in event.notes:
            arrays += 1
        elif event.notes.get("kind") == "train":
            others += 1
            names.update(dict.fromkeys(map(str, event.notes.get("holds") or ())))
    if arrays or not (others or errors):
        return
    if not others:
        why, count = errors.most_common(1)[0]
        raise NotUnderstood(f"all {count} answers of clients are errors, such as {why!r}")
    held = ", ".join(names) or "nothing"
    meaning = ""
    if any(name in ENCRYPTION for name in filters(logs)):
        meaning = ": homomorphic encryption, of which the server learns only sums"
    if "masked" in held or any(mod in SUMS for mod in mods(logs)):
        meaning = ": secure aggregation, of which the server learns only sums"
    raise NotUnderstood(
        f"clients answered no model: {others} answers hold no arrays, but "
        f"{held}{meaning}; leakaudit does not understand these messages"
    )


def mods(logs: Sequence[RankLog]) -> list[str]:
    """Return the mods that clients' processes ran."""
    return sorted(_listed(logs, "mod"))


def spent(logs: Sequence[RankLog]) -> list[FrameworkEpsilon]:
    """Return the epsilon that frameworks of the program stated last."""
    return framework_epsilon.last(event.notes for event in _events(logs, SPENT))


def partitions(logs: Sequence[RankLog]) -> dict[str, int]:
    """Return client -> partition, as clients' processes said."""
    found: dict[str, int] = {}
    for event in _events(logs, "client"):
        partition = event.notes.get("partition")
        if partition is not None:
            found[str(event.notes.get("node"))] = partition
    return found


def filters(logs: Sequence[RankLog]) -> list[str]:
    """Return the filters through which messages pass, but for those that change no number."""
    return sorted((_listed(logs, "filter") | _listed(logs, "filters")) - set(PLAIN))


def _listed(logs: Sequence[RankLog], note: str) -> set[str]:
    found: set[str] = set()
    for event in _events(logs):
        held = event.notes.get(note) or ()
        found.update([held] if isinstance(held, str) else held)
    return found


def changed(logs: Sequence[RankLog]) -> str:
    """Return why clients may not send the result of plain steps; empty if nothing says so."""
    why: list[str] = []
    mechanisms = [mod for mod in mods(logs) if mod in NOISE] + filters(logs)
    if mechanisms:
        why.append(f"{', '.join(mechanisms)} may change what is sent")
    others = sorted(_listed(logs, "beside"))
    if others:
        why.append(f"messages also hold {', '.join(others)}")
    return "; ".join(why)


def remarks(logs: Sequence[RankLog]) -> Iterator[str]:
    """Yield remarks about the program for the reader of a trace."""
    for mod in mods(logs):
        if mod == "Opacus":
            yield "ranks train with Opacus: their gradients are clipped and have noise"
        elif mod in NOISE:
            yield f"clients ran {mod}: what they send is clipped and has noise"
        elif mod in CLIPPING:
            yield f"clients ran {mod}: their updates are clipped"
        elif mod in SUMS:
            yield f"clients ran {mod}: what they send is masked"
    for one in spent(logs):
        yield one.sentence
    for name in filters(logs):
        does = FILTERS.get(name, "is not known to leakaudit")
        yield f"messages pass through {name}, which {does}"
    others = sorted(_listed(logs, "beside"))
    if others:
        yield f"messages also hold {', '.join(others)}, which is not in the trace"
    if any(event.notes.get("content") == "WEIGHT_DIFF" for event in _events(logs)):
        yield (
            "clients sent differences from the server's model; "
            "the trace holds the models that they stand for"
        )
    errors = len(list(_events(logs, "error")))
    if errors:
        yield f"{errors} answers of clients are errors"
    others_held = [event.notes for event in _events(logs, "other")]
    kinds = Counter(str(notes["kind"]) for notes in others_held if "kind" in notes)
    for kind, count in sorted(kinds.items()):
        if kind != "train":
            yield f"{count} messages of kind {kind} are not in the trace"
