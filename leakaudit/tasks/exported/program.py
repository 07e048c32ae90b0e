"""A torch.export program as a module: the operators of its graph, run one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks.exported import operators
from leakaudit.tasks.exported.archive import ArchiveContent, Node

# The parameters keep their names, so that gradients belong to the same names as those that travel.
# Linear layers and ReLU become modules of their own, because attacks look for them
# (`build_task.linear_ends`, `smoothed_relu`).

EMBEDDING = "torch.ops.aten.embedding.default"
LINEAR = "torch.ops.aten.linear.default"
RELU = ("torch.ops.aten.relu.default", "torch.ops.aten.relu_.default")
STATISTICS = {  # operator -> the argument by which it uses the statistics of the batch
    "batch_norm": "training",
    "native_batch_norm": "training",
    "_native_batch_norm_legit_functional": "training",
    "instance_norm": "use_input_stats",
}
ATTENTION = "scaled_dot_product_attention"
VIEWS = frozenset(operators.SHAPES.split())
DEPTH = 64  # levels of modules, a choice far above those of any model


@dataclass(frozen=True, eq=False)
class _Step:
    node: Node
    outputs: tuple[str, ...]  # names of its results
    module: str = ""  # name of the module that computes it; empty if the operator does
    also: str = ""  # another name that its result takes, because the operator works in place


@dataclass(eq=False)
class _ComputationGraph:
    """What a program computes, and what is known about it."""

    stored: ArchiveContent  # the content of the file, without the values of its tensors
    name: str
    # the nodes that the output depends on, in order
    steps: list[_Step] = field(default_factory=list)
    # name of a parameter or buffer -> its name in the graph
    owned: list[tuple[str, str]] = field(default_factory=list)
    # largest probability of a dropout that was active when the program was exported
    dropout: float = 0.0
    normalises: bool = False  # whether batch normalisation uses the statistics of the batch
    own: torch.dtype = torch.float32  # number format of the exported parameters

    @property
    def batch(self) -> int | None:
        """Number of inputs for which the program was exported; None for any number."""
        return self.stored.shape[0] if self.stored.shape else None

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.stored.shape[1:]

    @property
    def attends(self) -> bool:
        return any(operators.base(step.node.target) == ATTENTION for step in self.steps)

    def tokens(self) -> int:
        if self.stored.dtype.is_floating_point:
            return 0
        same = {self.stored.input}  # the input in any shape
        for step in self.steps:
            read = _reads(step.node)
            if operators.base(step.node.target) in VIEWS and read and read[0] in same:
                same.update(step.outputs)
            if step.node.target == EMBEDDING and same & set(read[1:]):
                return len(self.stored.tensors[self.stored.parameters[read[0]]])
        raise LeakauditError(
            f"model {self.name}: its inputs are whole numbers, but go to no embedding; "
            "state their number with the argument tokens"
        )


class ExportedProgram(nn.Module):
    """An exported model; dropout is off, and batch normalisation changes no statistics."""

    def __init__(self, stored: ArchiveContent, name: str) -> None:
        super().__init__()
        # A single attribute: all other names may be those of the user's modules.
        self.exported_graph = _ComputationGraph(stored, name)
        try:
            self._build(stored)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise LeakauditError(f"model {name} is rejected: {error}") from None

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for inputs (b, *shape)."""
        graph = self.exported_graph
        batch = graph.batch
        if batch is None or len(x) == batch:
            return self._run(x)
        if graph.normalises:
            raise LeakauditError(
                f"model {graph.name} was exported for batches of {batch}, and batch normalisation "
                f"couples them, got {len(x)}; export it with a dynamic first dimension"
            )
        room = -len(x) % batch
        padded = torch.cat([x, x.new_zeros(room, *x.shape[1:])])
        parts = [self._run(part) for part in padded.split(batch)]
        return torch.cat(parts)[: len(x)]

    def _build(self, stored: ArchiveContent) -> None:
        graph = self.exported_graph
        names = [*stored.parameters.values(), *stored.buffers.values()]
        floats = [stored.tensors[name].dtype for name in stored.parameters.values()]
        graph.own = next((dtype for dtype in floats if dtype.is_floating_point), torch.float32)
        graph.steps = list(_needed(stored))
        _look(graph)
        layers = _own_layers(graph)
        made: dict[str, nn.Parameter] = {}
        # Modules are made in the order of the parameters, which is that of the messages.
        for name in stored.parameters.values():
            value = stored.tensors[name]
            first = stored.tied.get(name, name)
            if first not in made:
                made[first] = nn.Parameter(value, name in stored.trained)
            place, _, last = name.rpartition(".")
            if place in layers and last == "weight":
                inside, _, own = place.rpartition(".")
                _module(self, inside).add_module(own, layers[place])
            _module(self, place).register_parameter(last, made[first])
        for name in stored.buffers.values():
            place, _, last = name.rpartition(".")
            _module(self, place).register_buffer(last, stored.tensors[name])
        graph.owned = list(zip(names, [*stored.parameters, *stored.buffers], strict=True))
        for k, step in enumerate(graph.steps):
            in_place = operators.in_place(step.node.target)
            if step.node.target in RELU and (step.also or not in_place):
                self.add_module(f"exported_relu{k}", nn.ReLU())
                graph.steps[k] = _Step(step.node, step.outputs, f"exported_relu{k}", step.also)

    def _run(self, x: Tensor) -> Tensor:
        """Run the graph on a batch of the accepted size."""
        graph = self.exported_graph
        held: dict[str, Any] = dict(graph.stored.constants)
        for own, name in graph.owned:
            place, _, last = own.rpartition(".")
            held[name] = getattr(self.get_submodule(place), last)
        held[graph.stored.input] = x
        like = x if x.is_floating_point() else next(self.parameters(), x)
        for step in graph.steps:
            results = self._computed(step, held, like)
            held.update(zip(step.outputs, results, strict=False))
            if step.also:
                held[step.also] = results[0]
        out: Tensor = held[graph.stored.output]
        return out

    def _computed(self, step: _Step, held: Mapping[str, Any], like: Tensor) -> tuple[Any, ...]:
        graph = self.exported_graph
        given = [(one, operators.value(one.arg, held, like, graph.own)) for one in step.node.inputs]
        named = {one.name: value for one, value in given}
        if step.module:
            place = 1 if step.node.target == EMBEDDING else 0
            return (self.get_submodule(step.module)(given[place][1]),)
        name = operators.base(step.node.target)
        operators.refuse_large(name, named)
        _without_chance(name, named, graph.normalises)
        by_place = [named[one.name] for one, _ in given if one.kind == 1]
        by_name = {one.name: named[one.name] for one, _ in given if one.kind != 1}
        out = operators.function(step.node.target)(*by_place, **by_name)
        return tuple(out) if isinstance(out, list | tuple) else (out,)


def _without_chance(name: str, given: dict[str, Any], normalises: bool) -> None:
    """Change arguments such that dropout is off and no running statistics are changed."""
    if name in operators.DROPOUTS:
        given["train"] = False
    if name == ATTENTION and "dropout_p" in given:
        given["dropout_p"] = 0.0
    flag = STATISTICS.get(name)
    if flag is None or not given.get(flag):
        return
    given[flag] = normalises
    if normalises and name != "_native_batch_norm_legit_functional":
        given["running_mean"] = None
        given["running_var"] = None


def _module(root: nn.Module, path: str) -> nn.Module:
    found = root
    parts = path.split(".") if path else []
    if len(parts) > DEPTH:
        raise ValueError(f"{path!r:.60} has too many levels")
    for part in parts:
        if part not in found._modules:
            found.add_module(part, nn.Module())
        found = found.get_submodule(part)
    return found


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, held in value.items():
            if key in ("name", "as_name") and isinstance(held, str):
                yield held
            else:
                yield from _names(held)
    elif isinstance(value, list):
        for held in value:
            yield from _names(held)


def _reads(node: Node) -> list[str]:
    return [name for one in node.inputs for name in _names(one.arg)]


def _needed(stored: ArchiveContent) -> Iterator[_Step]:
    """Yield the nodes that the output depends on.

    Training mode counts batches in place, which nothing depends on. Other changes of the model's
    own tensors would make its outputs depend on earlier calls.
    """
    own = {*stored.parameters, *stored.buffers}
    changed = Counter(name for node in stored.nodes for name in set(_reads(node)) & own)
    live = {stored.output}
    kept: list[_Step] = []
    for node in reversed(stored.nodes):
        outputs = tuple(name for one in node.outputs for name in _names(one))
        read = _reads(node)
        works_in_place = operators.in_place(node.target) and bool(read)
        only_counts = works_in_place and read[0] in own and changed[read[0]] == 1
        if live.isdisjoint(outputs) and (only_counts or not works_in_place):
            continue
        live.update(read)
        operators.function(node.target)  # rejects an unknown one
        kept.append(_Step(node, outputs))
    kept.reverse()
    yield from _checked(kept, own)


def _checked(steps: list[_Step], own: set[str]) -> Iterator[_Step]:
    """Yield nodes; reject those that change the model's own tensors or views of them."""
    views = set(own)
    seen: set[str] = set()  # what a view has been taken of
    for step in steps:
        read = _reads(step.node)
        also = ""
        if operators.in_place(step.node.target) and read:
            if read[0] in views:
                raise ValueError(f"it changes its tensor {read[0]!r:.60} while it runs")
            if step.node.target in RELU and read[0] not in seen:
                also = read[0]
        if operators.base(step.node.target) in VIEWS and read:
            seen |= {read[0], *step.outputs}
            if read[0] in views:
                views.update(step.outputs)
        yield _Step(step.node, step.outputs, also=also)


def _look(graph: _ComputationGraph) -> None:
    """Find dropout and normalisation that were active when the program was exported."""
    for step in graph.steps:
        given = {one.name: next(iter(one.arg.values()), None) for one in step.node.inputs}
        name = operators.base(step.node.target)
        chance = 0.0
        if name in operators.DROPOUTS and given.get("train"):
            chance = float(given.get("p") or 0.0)
        if name == ATTENTION:
            chance = float(given.get("dropout_p") or 0.0)
        graph.dropout = max(graph.dropout, chance)
        if given.get(STATISTICS.get(name, "")):
            graph.normalises = True


def _empty(kind: str, weight: Tensor, bias: bool) -> nn.Module:
    """Return a linear layer or an embedding without values."""
    if kind == LINEAR:
        out, inputs = weight.shape
        return nn.Linear(inputs, out, bias=bias, device="meta")
    rows, width = weight.shape
    return nn.Embedding(rows, width, device="meta")


def _own_layers(graph: _ComputationGraph) -> dict[str, nn.Module]:
    """Return linear layers and embeddings whose parameters no other node uses; mark their steps."""
    stored = graph.stored
    uses = Counter(name for step in graph.steps for name in _reads(step.node))
    tensors = Counter(name.rpartition(".")[0] for name in stored.tensors)
    shared = {*stored.tied, *stored.tied.values()}
    found: dict[str, nn.Module] = {}
    for k, step in enumerate(graph.steps):
        read = _reads(step.node)
        kind = step.node.target
        if kind not in (LINEAR, EMBEDDING) or len(read) < 2:
            continue
        held = read[1:] if kind == LINEAR else read[:1]
        own = tuple(stored.parameters.get(name, "") for name in held)
        path = own[0].rpartition(".")[0]
        names = (f"{path}.weight", f"{path}.bias")[: len(own)]
        alone = all(uses[name] == 1 for name in held) and tensors[path] == len(own)
        nested = any(name.startswith(f"{path}.") for name in stored.tensors if name not in own)
        if not path or own != names or nested or not alone or not shared.isdisjoint(own):
            continue
        weight = stored.tensors[own[0]]
        if weight.dim() == 2:
            graph.steps[k] = _Step(step.node, step.outputs, path, step.also)
            found[path] = _empty(kind, weight, bias=len(own) > 1)
    return found
