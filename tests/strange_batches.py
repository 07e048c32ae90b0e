"""Families of batches whose certificates must be true, with gradients that are computed here.

A family draws what clients hold, how their program changes it before the network sees it, what the
network is, and what becomes of a gradient on its way. The product only attacks the messages. An
input that it calls exact, or an interval, is compared with every input that the network received
from this client.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.reconstruction import Certificate
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario

D = torch.float64
SIDE = 12  # of the pictures, in pixels
SAME = 1e-3  # levels by which rounding of a program's own numbers may move an input
View = Callable[[Tensor, int, Generator], Tensor]
Wire = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True)
class Case:
    """x: (clients, b, p) what clients hold. y: (clients, b) labels, or targets.

    levels: the declared grid. view: what the network receives in a round. wire: what becomes of a
    gradient. tell: parameters of the recording; heard: whether the models are on the wires. start:
    changes the first model. ordinary: photographs, of which nearly all must be called exact.
    hidden: neurons; 0 stands for a softmax regression. shape: of an input, if it is no vector.
    attack: its name, if the number of records does not tell. act: the activation. labels: targets
    (b, classes) of a round, instead of those of y. kept: factors of the hidden neurons, as dropout.
    """

    x: Tensor
    y: Tensor
    levels: int
    classes: int = 10
    loss: str = "cross_entropy"
    hidden: int = 64
    rounds: int = 8
    lr: float = 0.1
    dtype: torch.dtype = torch.float32
    view: View = lambda x, t, g: x
    wire: Wire = lambda v, g: v
    heard: bool = True
    tell: dict[str, float | None] = field(default_factory=dict)
    start: Callable[[list[Tensor]], None] = lambda w: None
    smooth: float = 0.0
    decay: float = 0.0
    shape: tuple[int, ...] = ()
    attack: str = ""
    act: Callable[[Tensor], Tensor] = torch.relu
    labels: View = lambda y, t, g: y
    kept: View = lambda h, t, g: torch.ones_like(h)


@dataclass
class Count:
    """records: held by the clients. exact: called so; false: of these, never received.

    interval: inputs with an interval; missed: of these, with a value outside; worst: largest error
    in half-widths.
    """

    records: int = 0
    exact: int = 0
    false: int = 0
    interval: int = 0
    missed: int = 0
    worst: float = 0.0
    cases: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add another count to this one."""
        self.records += other.records
        self.exact += other.exact
        self.false += other.false
        self.interval += other.interval
        self.missed += other.missed
        self.worst = max(self.worst, other.worst)
        self.cases += other.cases


def gradient(w: list[Tensor], x: Tensor, y: Tensor, case: Case, t: int, g: Generator) -> Tensor:
    """Return the gradient of the mean loss of a network with at most one hidden layer, by hand."""
    before = (x @ w[0].T + w[1]).requires_grad_()
    kept = case.kept(before.detach(), t, g)
    inside = case.act(before)
    (bends,) = torch.autograd.grad(inside.sum(), before)
    before, inside = before.detach(), inside.detach() * kept
    out = inside @ w[2].T + w[3] if case.hidden else before
    if case.loss == "cross_entropy":
        target = torch.nn.functional.one_hot(y, case.classes).to(D)
        target = target * (1 - case.smooth) + case.smooth / case.classes
        slope = out.softmax(1) - case.labels(target, t, g)
    elif case.loss == "binary":
        slope = out.sigmoid() - y.to(D)[:, None]
    else:
        slope = out - torch.nn.functional.one_hot(y, case.classes).to(D)
    slope = slope / len(x)
    if not case.hidden:
        return torch.cat([(slope.T @ x).flatten(), slope.sum(0)])
    first = (slope @ w[2]) * bends * kept
    parts = [first.T @ x, first.sum(0), slope.T @ inside, slope.sum(0)]
    return torch.cat([part.flatten() for part in parts])


def attacked(case: Case, seed: int) -> Count:
    """Record a case, attack it, and compare the certificates with what the network received."""
    clients, b, _ = case.x.shape
    trace, received = recorded(case, seed)
    attack = case.attack or ("exact" if b > 1 else "analytic")
    found = la.attack(la.leaks(trace), attack, generator=Generator().manual_seed(seed))
    total = Count(records=clients * b)
    for one in found:
        total.add(compared(one, torch.cat(received[one.node]), case.levels))
    return total


def recorded(
    case: Case, seed: int, path: Path | None = None
) -> tuple[la.Trace, list[list[Tensor]]]:
    """Return the trace of a case, and what each client's network received in each round.

    If it is written to a path, so is the truth.
    """
    g = Generator().manual_seed(seed)
    clients, b, p = case.x.shape
    outputs = 1 if case.loss == "binary" else case.classes
    shapes = [(case.hidden, p), (case.hidden,), (outputs, case.hidden), (outputs,)]
    scales = [p**-0.5, 0.1, max(1, case.hidden) ** -0.5, 0.1]
    if not case.hidden:
        shapes, scales = [(outputs, p), (outputs,)], scales[:2]
    w = [torch.randn(s, generator=g, dtype=D) * a for s, a in zip(shapes, scales, strict=True)]
    case.start(w)
    spec = la.TaskSpec(
        "mlp" if case.hidden else "logistic",
        {"hidden": case.hidden} if case.hidden else {},
        shape=case.shape or (p,),
        classes=case.classes,
        levels=case.levels,
        loss=case.loss,
    )
    told = {"lr": case.lr, "samples": b, **case.tell}
    graph = la.Graph(clients + 1, tuple((i, clients) for i in range(clients)))
    flat = torch.cat([part.flatten() for part in w]).to(case.dtype)
    received: list[list[Tensor]] = [[] for _ in range(clients)]
    with la.Recorder(
        path,
        protocol="fedsgd",
        task=spec,
        graph=graph,
        params={name: value for name, value in told.items() if value is not None},
        public={"w0": flat} if case.heard else {},
        rounds=case.rounds,
        options=la.RecorderOptions(dtype=case.dtype),
    ) as r:
        for t in range(1, case.rounds + 1):
            if case.heard:
                r.send(round=t, src=clients, dst=list(range(clients)), kind="w", value=flat)
            split = flat.to(D).split([int(np.prod(shape)) for shape in shapes])
            w = [part.reshape(shape) for part, shape in zip(split, shapes, strict=True)]
            sent = []
            for i in range(clients):
                x = case.view(case.x[i], t, g)
                received[i].append(x)
                y = case.y[i, torch.arange(len(x)) % b]
                value = gradient(w, x, y, case, t, g) + case.decay * flat.to(D)
                sent.append(case.wire(value.to(case.dtype), g).to(case.dtype))
                r.send(round=t, src=i, dst=clients, kind="g", value=sent[i])
            flat = flat - case.lr * torch.stack(sent).mean(0)
        for i in range(clients if path else 0):
            r.truth(node=i, x=case.x[i].reshape(b, *spec.shape), y=case.y[i])
    return r.trace, received


def compared(found: la.Reconstruction, received: Tensor, levels: int) -> Count:
    """Count the certificates of a reconstruction; received: (n, p) inputs of the network."""
    count = Count()
    x = found.x.to(D).flatten(1)
    for k, certificate in enumerate(found.certificates):
        if certificate is Certificate.EXACT:
            count.exact += 1
            off = float((x[k] - received).abs().amax(1).min()) * levels
            if not off < SAME:
                count.false += 1
                count.cases.append(f"client {found.node}: EXACT but {off:.3g} levels off")
    if found.interval is not None:
        width = found.interval.to(D).flatten(1)
        error = (x[:, None] - received).abs()
        # A column of zeros in all messages is zero, with a half-width of zero.
        ratio = torch.where(error > 0, error / width[:, None], 0.0).amax(2)
        nearest = ratio.argmin(1)
        twice = len(nearest.unique()) < len(x)
        for k in range(len(x)):
            worst = float("inf") if twice else float(ratio[k].min())
            count.interval += 1
            count.missed += worst > 1
            count.worst = max(count.worst, worst)
            if worst > 1:
                count.cases.append(f"client {found.node}: {worst:.3g} half-widths off")
    return count


@functools.cache
def pictures() -> Tensor:
    """Grey photographs (n, p) in levels 0 to 255: bundled faces, and CIFAR-10 if it is there."""
    faces = recording.plan(Scenario("fedsgd", nodes=5, graph="star", data="faces", samples=20))
    pool = [_small(faces.source.x.double().squeeze(1) * 255)]
    file = Path(os.environ.get("LEAKAUDIT_TEST_DATA", "")) / "cifar10_train_subset.npz"
    if file.is_file():
        with np.load(file) as given:
            colour = torch.tensor(given["x_train"][:1000]).double()
        pool.append(_small(colour.reshape(1000, 32, 32, -1).mean(3)))
    return torch.cat(pool)


def _small(images: Tensor) -> Tensor:
    size = (SIDE, SIDE)
    small = torch.nn.functional.interpolate(images[:, None], size, mode="area")
    return small.round().clamp(0, 255).flatten(1)


def _photos(g: np.random.Generator, b: int | None = None, **changes: Any) -> Case:
    """Clients with photographs, and a network of some size."""
    clients = 3
    b = b or int(g.choice([1, 2, 2, 3, 4]))
    pool = pictures()
    rows = torch.tensor(g.permutation(len(pool))[: clients * b])
    x = pool[rows].reshape(clients, b, -1)
    case = Case(
        x=x / 255,
        y=torch.tensor(g.integers(0, 10, (clients, b))),
        levels=255,
        hidden=int(g.choice([48, 64, 96])),
        rounds=int(g.choice([2, 4, 8, 12])),
        dtype=[torch.float32, D][int(g.integers(2))],
        heard=bool(g.random() < 0.6),
    )
    return replace(case, **changes)


def _repainted(paint: Callable[[Tensor, np.random.Generator], Tensor]) -> Family:
    """Photographs (clients, b, side, side) in levels that are painted over."""

    def family(g: np.random.Generator) -> Case:
        case = _photos(g)
        x = paint((case.x * 255).round().unflatten(2, (SIDE, SIDE)).clone(), g)
        return replace(case, x=x.round().clamp(0, 255).flatten(2) / 255)

    return family


def _seen(view: View, b: int | None = None) -> Family:
    """Photographs that the program changes in every round."""
    return lambda g: _photos(g, b=b, view=view)


def _sent(wire: Wire, **changes: Any) -> Family:
    """Photographs whose gradients are changed on their way."""
    return lambda g: _photos(g, wire=wire, **changes)


def _square(x: Tensor) -> Tensor:
    pictures: Tensor = x.unflatten(1, (SIDE, SIDE)).clone()
    return pictures


def _flip(x: Tensor, t: int, g: Generator) -> Tensor:
    pictures = _square(x)
    for picture in pictures:
        if torch.rand(1, generator=g) < 0.5:
            picture.copy_(picture.flip(1))
    return pictures.flatten(1)


def _cutout(x: Tensor, t: int, g: Generator) -> Tensor:
    pictures = _square(x)
    for picture in pictures:
        top, left = torch.randint(0, SIDE - 4, (2,), generator=g).tolist()
        picture[top : top + 4, left : left + 4] = 0
    return pictures.flatten(1)


def _shift(x: Tensor, t: int, g: Generator) -> Tensor:
    step = torch.randint(-1, 2, (2,), generator=g).tolist()
    return _square(x).roll(step, (1, 2)).flatten(1)


def _brightness(x: Tensor, t: int, g: Generator) -> Tensor:
    more = torch.randint(-8, 9, (len(x), 1), generator=g) / 255
    return ((x + more) * 255).round().clamp(0, 255) / 255


def _jitter(size: float) -> View:
    return lambda x, t, g: x + size * torch.randn(x.shape, generator=g, dtype=D)


def _mixup(x: Tensor, t: int, g: Generator) -> Tensor:
    return 0.7 * x + 0.3 * x.flip(0)


def _averages(x: Tensor, t: int, g: Generator) -> Tensor:
    """The mean of the first two pictures takes the place of the first one."""
    return torch.cat([x[:2].mean(0, keepdim=True), x[1:]])


def _mixtures(g: np.random.Generator) -> Case:
    """Every input is a mean of all pictures of a client, with weights drawn at random."""
    b = int(g.choice([2, 3]))
    weights = torch.tensor(g.dirichlet(np.ones(b), size=b))
    few = {"hidden": int(g.choice([32, 64, 128, 256])), "rounds": int(g.integers(1, 5))}
    return _photos(g, b=b, view=lambda x, t, g: weights @ x, **few)


def _cutmix(x: Tensor, t: int, g: Generator) -> Tensor:
    pictures = _square(x)
    pictures[:, :, SIDE // 2 :] = pictures.flip(0)[:, :, SIDE // 2 :]
    return pictures.flatten(1)


def _unused(x: Tensor, t: int, g: Generator) -> Tensor:
    """Drop a tenth of the pixels, others in every round."""
    return x * (torch.rand(x.shape, generator=g) > 0.1)


def _alternating(g: np.random.Generator) -> Case:
    """Two records, one in each round, and nobody says so."""
    case = _photos(g, b=2)
    return replace(case, view=lambda x, t, g: x[t % 2 : t % 2 + 1], tell={"samples": 1}, y=case.y)


def _new_each_step(g: np.random.Generator) -> Case:
    """As many records as rounds, one in each round: ordinary SGD."""
    case = _photos(g, b=6, rounds=6)
    return replace(case, view=lambda x, t, g: x[t - 1 : t], tell={"samples": 1})


def _new_pair_each_step(g: np.random.Generator) -> Case:
    case = _photos(g, b=6, rounds=6)
    return replace(case, view=lambda x, t, g: x[2 * (t % 3) :][:2], tell={"samples": 2})


def _coarse(step: float) -> Wire:
    def wire(v: Tensor, g: Generator) -> Tensor:
        unit = step * v.abs().max().clamp_min(1e-30)
        return (v / unit).round() * unit

    return wire


def _noisy(size: float) -> Wire:
    return lambda v, g: v + size * torch.randn(v.shape, generator=g, dtype=v.dtype)


def _largest(v: Tensor, g: Generator) -> Tensor:
    return v * (v.abs() >= v.abs().topk(len(v) // 5).values[-1])


def _clipped(v: Tensor, g: Generator) -> Tensor:
    return v * min(1.0, 0.1 / float(v.norm()))


def _table(
    draw: Callable[[np.random.Generator, int], np.ndarray], levels: int = 0, **changes: Any
) -> Family:
    """Clients with rows of a table."""

    def family(g: np.random.Generator) -> Case:
        clients, b = 3, int(g.choice([1, 2, 2, 2, 3]))
        rows = torch.tensor(draw(g, clients * b), dtype=D).reshape(clients, b, -1)
        case = Case(
            x=rows,
            y=torch.tensor(g.integers(0, 10, (clients, b))),
            levels=levels,
            hidden=int(g.choice([32, 48, 64])),
            rounds=int(g.choice([4, 10])),
            dtype=[torch.float32, D][int(g.integers(2))],
            heard=bool(g.random() < 0.7),
        )
        return replace(case, **changes)

    return family


def unscaled(g: np.random.Generator, n: int) -> np.ndarray:
    """One of eight, two ages, two incomes, six normal and two small columns, and a constant."""
    return np.concatenate(
        [
            np.eye(8)[g.integers(0, 8, n)],
            g.integers(0, 90, (n, 2)),
            g.lognormal(9, 1, (n, 2)),
            g.normal(size=(n, 6)),
            g.normal(size=(n, 2)) * 1e-3,
            np.ones((n, 1)),
        ],
        axis=1,
    )


def _onehot(g: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([np.eye(k)[g.integers(0, k, n)] for k in (3, 5, 8, 12)], axis=1)


def _integers(g: np.random.Generator, n: int) -> np.ndarray:
    return g.integers(0, 90, (n, 24)).astype(float)


def _heavy(g: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([g.standard_cauchy((n, 12)), g.lognormal(0, 3, (n, 12))], axis=1)


def _standard(g: np.random.Generator, n: int) -> np.ndarray:
    return g.normal(size=(n, 24))


def _sparse(g: np.random.Generator, n: int) -> np.ndarray:
    return g.normal(size=(n, 40)) * (g.random((n, 40)) < 0.15)


def _alike(g: np.random.Generator, n: int) -> np.ndarray:
    return g.normal(size=24) + 1e-3 * g.normal(size=(n, 24))


def _mixed_size(g: np.random.Generator, n: int) -> np.ndarray:
    return g.normal(size=(n, 24)) * 10.0 ** g.integers(-4, 5, 24)


def _between(x: Tensor) -> Tensor:
    """The last record of a client becomes the mean of two others, on the grid."""
    x = x.clone()
    x[:, -1] = ((x[:, 0] + x[:, 1]) / 2 * 255).floor() / 255
    return x


def _three_with_their_mean(g: np.random.Generator) -> Case:
    case = _photos(g, b=3)
    even = (case.x * 255 / 2).floor() * 2 / 255
    return replace(case, x=_between(even))


def _one_label(case: Case) -> Case:
    return replace(case, y=case.y[:, :1].expand_as(case.y).contiguous())


def _zeros(w: list[Tensor]) -> None:
    for part in w:
        part.zero_()


# Nobody says how many records there are; float32 would not tell similar ones apart.
_SOFTMAX: dict[str, Any] = {
    "hidden": 0,
    "lr": 0.5,
    "dtype": D,
    "tell": {"samples": None},
    "attack": "analytic",
}


def _no_outputs(w: list[Tensor]) -> None:
    """The neurons come in pairs that cancel, so the outputs of the first model are zero."""
    half = len(w[1]) // 2
    w[0][half:], w[1][half:], w[2][:, half:] = w[0][:half], w[1][:half], -w[2][:, :half]
    w[3].zero_()


def _zero_last(w: list[Tensor]) -> None:
    w[3].zero_()
    w[2].mul_(1e-9)


def _loud_last(factor: float) -> Callable[[list[Tensor]], None]:
    def start(w: list[Tensor]) -> None:
        w[2].mul_(factor)

    return start


def _dead(w: list[Tensor]) -> None:
    w[1].sub_(0.4)


def _brighter(g: np.random.Generator) -> Case:
    """The second picture is the first one with half of the light."""
    case = _photos(g, b=2)
    x = (case.x * 255 / 2).floor() * 2 / 255
    x[:, 1] = x[:, 0] / 2
    return replace(case, x=x)


def _twins(pixels: int) -> Family:
    """Two pictures that differ by two levels in a few pixels, with another label."""

    def family(g: np.random.Generator) -> Case:
        case = _photos(g, b=2)
        x = case.x.clone()
        x[:, 1] = x[:, 0]
        places = torch.tensor(g.permutation(x.shape[2])[:pixels])
        x[:, 1, places] = ((x[:, 1, places] * 255 + 2) % 256) / 255
        return replace(case, x=x)

    return family


def _weighted(weights: Tensor) -> View:
    return lambda x, t, g: weights @ x


def _equal_slopes(g: np.random.Generator) -> dict[str, Any]:
    """Models at which slopes of one label are equal, or do not change from round to round."""
    choices: list[dict[str, Any]] = [
        {},
        {"start": _no_outputs},
        {"start": _no_outputs, "lr": 1e-30},
        {"start": _zero_last, "lr": 10.0},
        {"start": _loud_last(30.0)},
        {"lr": 1e-30},
    ]
    return choices[int(g.integers(len(choices)))]


def _signed(g: np.random.Generator) -> Case:
    """Mixtures with weights of both signs, of records with one label or several."""
    b = int(g.choice([2, 3]))
    weights = torch.tensor(g.normal(size=(b, b)))
    weights = torch.eye(b, dtype=D) + weights - weights.mean(1, keepdim=True)
    case = _photos(g, b=b, view=_weighted(weights), **_equal_slopes(g))
    return _one_label(case) if g.random() < 0.5 else case


def _sharpened(g: np.random.Generator) -> Case:
    """x1 + a (x1 - x2) and x2 + b (x2 - x1) take the place of two pictures of one label."""
    a, b = g.choice([-0.5, 0.0, 0.25, 0.5, 1.0], 2)
    weights = torch.tensor([[1 + a, -a], [-b, 1 + b]], dtype=D)
    return _one_label(_photos(g, b=2, view=_weighted(weights), **_equal_slopes(g)))


def _soft_mixup(g: np.random.Generator) -> Case:
    """Mixup of pictures and of labels, at known models."""
    return _photos(g, b=2, view=_mixup, labels=_mixup, heard=True)


def _in_last_layer(change: Wire) -> Callable[[list[Tensor]], None]:
    def start(w: list[Tensor]) -> None:
        w[2].copy_(change(w[2], Generator()))

    return start


def _copies(w: list[Tensor]) -> None:
    """Eight copies of each neuron."""
    n = len(w[1]) // 8
    w[0].copy_(w[0][:n].repeat(8, 1))
    w[1].copy_(w[1][:n].repeat(8))
    w[2].copy_(w[2][:, :n].repeat(1, 8))


def _repeating(start: Callable[[list[Tensor]], None]) -> Family:
    """Similar rows at unknown models that do not change, whose slopes repeat between neurons."""

    def family(g: np.random.Generator) -> Case:
        classes = int(g.choice([4, 6, 10]))
        spread = float(g.choice([0.03, 0.1, 0.3]))
        rows = g.normal(size=24) + spread * g.normal(size=(3, 2, 24))
        return Case(
            x=torch.tensor(rows),
            y=torch.tensor(g.integers(0, classes, (3, 2))),
            levels=0,
            classes=classes,
            hidden=int(g.choice([128, 256])),
            rounds=int(g.choice([1, 4])),
            lr=1e-30,
            dtype=D,
            heard=False,
            start=start,
        )

    return family


def _momentum(g: np.random.Generator) -> Case:
    """Clients send a running sum of their gradients, and nobody says so."""
    case = _photos(g)
    factor = float(g.choice([0.5, 0.9]))
    sums: list[Tensor] = []

    def wire(v: Tensor, g: Generator) -> Tensor:
        before = sums[-len(case.x)] if len(sums) >= len(case.x) else torch.zeros_like(v)
        sums.append(factor * before + v)
        return sums[-1]

    return replace(case, wire=wire)


def _minibatches(g: np.random.Generator) -> Case:
    """Two of four records in each step."""
    case = _photos(g, b=4)

    def view(x: Tensor, t: int, g: Generator) -> Tensor:
        return x[torch.randperm(4, generator=g)[:2]]

    return replace(case, view=view, tell={"samples": 2})


def _dropout(h: Tensor, t: int, g: Generator) -> Tensor:
    return 2.0 * (torch.rand(h.shape, generator=g) < 0.5)


def _halves(v: Tensor, g: Generator) -> Tensor:
    return v.half().to(v)


def _half_models(w: list[Tensor]) -> None:
    for part in w:
        part.copy_(part.half())


def _gamma(x: Tensor, t: int, g: Generator) -> Tensor:
    """Gamma of eight bits, normalised, in 16 bits."""
    return (((x**0.45 * 255).round() / 255 - 0.449) / 0.226).half().to(D)


def _watermark(x: Tensor, g: np.random.Generator) -> Tensor:
    x[..., : SIDE // 3] = torch.tensor(g.integers(0, 256, SIDE // 3)).to(x)
    return x


def _one_donor(x: Tensor, g: np.random.Generator) -> Tensor:
    x[..., SIDE // 2 :] = x[0, 0, :, SIDE // 2 :].clone()
    return x


def _last(change: Callable[[Tensor, np.random.Generator], Tensor], b: int) -> Family:
    """The last picture (clients, p) of a batch follows from the others (clients, b - 1, p)."""

    def family(g: np.random.Generator) -> Case:
        case = _photos(g, b=b)
        x = case.x.clone()
        x[:, -1] = change(x[:, :-1], g)
        return replace(case, x=x)

    return family


def _few_inverted(x: Tensor, g: np.random.Generator) -> Tensor:
    return (x[:, 0] - torch.tensor(g.random(x.shape[2]) < 0.02).to(x)).abs()


def _padded(g: np.random.Generator, n: int) -> np.ndarray:
    return g.normal(size=(n, 24)) * (np.arange(24) < g.integers(3, 25, (n, 1)))


def _numbered(g: np.random.Generator, n: int) -> np.ndarray:
    """A number of the row, a date in seconds, ten normal columns, and a constant."""
    number = 1e6 + np.arange(n)[:, None]
    date = 1.7e9 + g.integers(0, 30_000_000, (n, 1))
    return np.concatenate([number, date, g.normal(size=(n, 10)), np.ones((n, 1))], axis=1)


def _missing(g: np.random.Generator, n: int) -> np.ndarray:
    return np.where(g.random((n, 20)) < 0.15, -999.0, g.normal(size=(n, 20)))


def _log_counts(g: np.random.Generator, n: int) -> np.ndarray:
    return np.log1p(g.poisson(3, (n, 30)))


def _rare(g: np.random.Generator, n: int) -> np.ndarray:
    return (g.random((n, 200)) < 0.01).astype(float)


def _walks(g: np.random.Generator, n: int) -> np.ndarray:
    return np.cumsum(g.normal(size=(n, 40)), axis=1)


def _unit_length(g: np.random.Generator, n: int) -> np.ndarray:
    rows = g.normal(size=(n, 48))
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


Family = Callable[[np.random.Generator], Case]

FAMILIES: dict[str, Family] = {
    "photographs": _photos,
    "black surround": _repainted(lambda x, g: torch.nn.functional.pad(x[..., 3:-3, 3:-3], [3] * 4)),
    "white frame": _repainted(
        lambda x, g: torch.nn.functional.pad(x[..., 2:-2, 2:-2], [2] * 4, value=255)
    ),
    "constant channel": lambda g: _with_ones(_photos(g)),
    "narrow window": _repainted(lambda x, g: 90 + x / 8),
    "four levels": _repainted(lambda x, g: (x / 85).round() * 85),
    "black and white": _repainted(lambda x, g: (x > 127).to(x) * 255),
    "flips": _seen(_flip),
    "cutout": _seen(_cutout),
    "shifts": _seen(_shift),
    "brightness": _seen(_brightness),
    "jitter of a fiftieth": _seen(_jitter(0.02)),
    "jitter of a millionth": _seen(_jitter(1e-6)),
    "mixup": _seen(_mixup, b=2),
    "averages": lambda g: _photos(g, b=2, view=_averages, rounds=2, heard=False),
    "mixtures": _mixtures,
    "cutmix": _seen(_cutmix, b=2),
    "input dropout": _seen(_unused),
    "alternating records": _alternating,
    "a new record in each step": _new_each_step,
    "new pairs in each step": _new_pair_each_step,
    "rounded to 16 bits": _sent(_coarse(2**-15)),
    "rounded to 24 bits": _sent(_coarse(2**-23)),
    "noise of 1e-5": _sent(_noisy(1e-5)),
    "the largest fifth": _sent(_largest),
    "clipped": _sent(_clipped),
    "smoothed labels": lambda g: _photos(g, smooth=0.1),
    "undeclared decay": lambda g: _photos(g, decay=float(10.0 ** g.integers(-7, -2))),
    "unscaled table": _table(unscaled),
    "unscaled table, few rounds": _table(unscaled, rounds=4, heard=True),
    "one-hot table": _table(_onehot),
    "one-hot table on a grid": _table(_onehot, levels=1),
    "table of integers": _table(_integers),
    "heavy tails": _table(_heavy),
    "standardised table": _table(_standard),
    "sparse table": _table(_sparse),
    "rows alike": _table(_alike),
    "columns of any size": _table(_mixed_size),
    "small steps of any size": _table(_mixed_size, lr=1e-6),
    "noise on a table": _table(_standard, wire=_noisy(1e-5)),
    "jitter of a table": _table(_standard, view=_jitter(1e-4)),
    "saturated softmax": lambda g: _photos(g, start=_loud_last(float(10.0 ** g.integers(1, 4)))),
    "large steps": lambda g: _photos(g, lr=float(10.0 ** g.integers(0, 4))),
    "saturated table": _table(_standard, start=_loud_last(30.0), lr=3.0),
    "one label, large steps": lambda g: _one_label(_photos(g, lr=float(10.0 ** g.integers(0, 4)))),
    "one label, no outputs": lambda g: _one_label(_photos(g, start=_no_outputs)),
    "one label, no outputs, large steps": lambda g: _one_label(
        _photos(g, start=_no_outputs, lr=30.0)
    ),
    "one label, tiny last layer": lambda g: _one_label(_photos(g, start=_zero_last, lr=10.0)),
    "table of one label, no outputs": lambda g: _one_label(
        _table(_standard, start=_no_outputs, lr=10.0)(g)
    ),
    "two classes": lambda g: _few_classes(_photos(g)),
    "two classes, large steps": lambda g: _few_classes(_photos(g, lr=30.0)),
    "binary loss": lambda g: _few_classes(_photos(g), loss="binary"),
    "binary loss, table": lambda g: _few_classes(_table(unscaled)(g), loss="binary"),
    "squared loss": lambda g: _photos(g, loss="squared", lr=0.01),
    "squared loss, table": _table(_standard, loss="squared", lr=0.01),
    "dead neurons": lambda g: _photos(g, start=_dead),
    "unchanged models": lambda g: _photos(g, lr=1e-30),
    "a mean of two among three": _three_with_their_mean,
    "half of the light": _brighter,
    "mirror pairs at a softmax regression": lambda g: _mirror_pairs(g),
    "a softmax regression": lambda g: _photos(g, b=1, rounds=8, heard=True, **_SOFTMAX),
    "table as pictures": _table(_standard, shape=(1, 4, 6)),
    "twins": _twins(6),
    "twins of one label": lambda g: _one_label(_twins(20)(g)),
    "mixtures of both signs": _signed,
    "sharpened pairs of one label": _sharpened,
    "mixup with soft labels": _soft_mixup,
    "watermark": _repainted(_watermark),
    "one donor": _repainted(_one_donor),
    "complement": _last(lambda x, g: 1 - x[:, 0], b=2),
    "few pixels inverted": _last(_few_inverted, b=2),
    "clipped sum": _last(lambda x, g: x.sum(1).clamp_max(1), b=3),
    "gamma in 16 bits": lambda g: _photos(g, levels=0, view=_gamma),
    "leaky ReLU": lambda g: _photos(g, act=torch.nn.functional.leaky_relu, heard=False),
    "GELU of one label": lambda g: _one_label(
        _photos(g, act=torch.nn.functional.gelu, heard=False, **_equal_slopes(g))
    ),
    "tanh, two classes": lambda g: _few_classes(_photos(g, act=torch.tanh, heard=False)),
    "SiLU, table": _table(_standard, act=torch.nn.functional.silu, heard=False),
    "dropout of neurons": lambda g: _photos(g, kept=_dropout),
    "few neurons": lambda g: _photos(g, hidden=int(g.choice([8, 12, 16])), **_equal_slopes(g)),
    "two of four in each step": _minibatches,
    "undeclared momentum": _momentum,
    "messages of 16 bits": _sent(_halves),
    "messages of 16 bits, table": _table(_standard, wire=_halves),
    "models of 16 bits": lambda g: _photos(g, start=_half_models),
    "fixed-point messages, table": _table(_standard, wire=lambda v, g: (v * 2**20).round() / 2**20),
    "records of different lengths": _table(_padded),
    "numbers and dates": _table(_numbered),
    "missing values": _table(_missing),
    "logarithms of counts": _table(_log_counts),
    "rare events": _table(_rare, levels=1),
    "time series": _table(_walks),
    "rows of unit length": _table(_unit_length),
    "copies of neurons": _repeating(_copies),
    "signs of the last layer": _repeating(_in_last_layer(lambda v, g: v.sign())),
    "pruned last layer": _repeating(_in_last_layer(lambda v, g: v * (v.abs() == v.abs().amax(0)))),
}


def _mirror_pairs(g: np.random.Generator) -> Case:
    """Pictures with their mirror images, of one label each, at models that began with zeros."""
    case = _photos(g, b=1, rounds=6, heard=True, **_SOFTMAX)
    even = (case.x * 255 / 4).floor() * 4 / 255
    flipped = even.unflatten(2, (SIDE, SIDE)).flip(3).flatten(2)
    x = torch.cat([even, flipped], dim=1)
    return replace(case, x=x, y=case.y.expand(-1, 2), start=_zeros)


def _with_ones(case: Case) -> Case:
    """Append a channel whose values are 1, such as one of opacity."""
    ones = case.x.new_ones(*case.x.shape[:2], SIDE)
    return replace(case, x=torch.cat([case.x, ones], dim=2))


def _few_classes(case: Case, loss: str = "cross_entropy") -> Case:
    return replace(case, y=case.y % 2, classes=2, loss=loss)


def drawn(name: str, seed: int) -> Count:
    """Draw a case of a family, attack it and count."""
    count = attacked(FAMILIES[name](np.random.default_rng(seed)), seed)
    count.cases = [f"{name}, seed {seed}, {case}" for case in count.cases]
    return count
