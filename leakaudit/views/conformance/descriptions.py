"""What a recording contains besides messages: only what its protocol declares."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.trace import RECORDING, Json, Trace
from leakaudit.protocols import premises
from leakaudit.protocols.declared import protocol_of
from leakaudit.views.deviation import Deviation

# Messages are attacked and compared with their declaration; a description is not. Whatever a
# program writes into it is therefore limited to names that the protocol reads, and to words: public
# vectors under other names, and descriptions with many numbers or that differ from seed to seed,
# are not accepted. What is declared, such as the initial model or a schedule, is counted.

# What differs from seed to seed, and is checked elsewhere: time and number of a recording, and what
# an engine says of messages that are missing.
OWN = frozenset(("created", RECORDING, "missing", "ended", "holds_until"))
# Most numbers, and most characters, of a name or a text of the program: a choice. A sentence has a
# few numbers, a record has dozens.
NUMBERS = 16
CHARACTERS = 1000
ID = 64  # most characters of a chosen id
NUMBER = re.compile(r"\d+(?:\.\d+)?")


class _Noted(UserDict[str, Tensor]):
    """Public tensors that note which ones are looked up."""

    def __init__(self, public: Mapping[str, Tensor]) -> None:
        super().__init__(public)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


class RecordedDescriptions:
    """The descriptions of the recordings of a check: call `look` for each."""

    def __init__(self) -> None:
        self._first: tuple[int, str] | None = None  # a seed, and what must not differ
        self._read: dict[frozenset[str], frozenset[str]] = {}
        self._declared: dict[str, int] = {}

    def look(self, trace: Trace, seed: int, *, simulated: bool = False) -> Iterator[Deviation]:
        """Yield what a description contains that the protocol does not declare."""
        read = self._names(trace)
        for name in sorted(set(trace.public) - read):
            says = (
                f"the public vector {name!r} of {trace.public[name].numel()} numbers is none that "
                f"{trace.protocol} reads; record it as a message if it is sent, and leave it out "
                "otherwise"
            )
            yield Deviation("names", says)
        self._declared = {name: tensor.numel() for name, tensor in trace.public.items()}
        texts = {**_free(trace), "id": trace.id if len(trace.id) > ID else ""}
        for name, value in texts.items():
            text = repr(value)
            count = len(NUMBER.findall(text))
            if count > NUMBERS or len(text) > CHARACTERS:
                says = (
                    f"{name} contains {count} numbers in {len(text)} characters; a description "
                    f"may have {NUMBERS} and {CHARACTERS}"
                )
                yield Deviation("names", says)
        # A simulation says which assumptions its data contradict.
        said = _constant(trace, OWN | {premises.KEY} if simulated else OWN)
        if self._first is None:
            self._first = (seed, said)
        if said != self._first[1]:
            says = (
                "the task, the names of parameters or the provenance are not those of seed "
                f"{self._first[0]}; describe every run alike, so that descriptions cannot depend "
                "on data"
            )
            yield Deviation("varies", says)

    def __str__(self) -> str:
        """Return how many numbers of a recording are not messages, in words; empty if none."""
        total = sum(self._declared.values())
        if not total:
            return ""
        each = ", ".join(f"{name} {count}" for name, count in sorted(self._declared.items()))
        return f"{total} numbers are public and no messages ({each})"

    def _names(self, trace: Trace) -> frozenset[str]:
        known = frozenset(trace.public)
        if known == {"w0"}:
            return known
        if known not in self._read:
            protocol = protocol_of(trace, trace.rounds)
            noted = _Noted(trace.public)
            made = protocol.victim.relations(trace.graph, trace.rounds, noted)
            vectors = {vector.name for vector in made.vectors if vector.kind == "public"}
            self._read[known] = frozenset(noted.names | vectors | {"w0"})
        return self._read[known]


def _free(trace: Trace) -> dict[str, Json]:
    found: dict[str, Json] = {"the name of the data": trace.task.data}
    for name, value in sorted(trace.provenance.items()):
        if name not in ("created", RECORDING, registry.TEXT):
            found[f"provenance {name[:ID]!r}"] = value
    return found


def _constant(trace: Trace, varies: Collection[str]) -> str:
    said = {name: value for name, value in trace.provenance.items() if name not in varies}
    return repr((sorted(trace.task.to_json().items()), sorted(said.items()), trace.layout.names))
