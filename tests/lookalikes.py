"""Batches of similar or otherwise difficult images to test EXACT certificates, and the count of
wrong ones.

A family turns ordinary images of one node, (b, c, h, w) in grey levels 0 to 255, into images that
are hard to distinguish. Settings turn ordinary images into difficult messages: noise, half
precision, clipping, weight decay.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.reconstruction import Certificate
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.views.extraction import hearing

Family = Callable[[Tensor, Generator], Tensor]


def second(change: Family) -> Family:
    """Make the second image a changed copy of the first."""

    def family(x: Tensor, g: Generator) -> Tensor:
        x = x.clone()
        x[1] = change(x[0], g)
        return x

    return family


def copies(change: Family) -> Family:
    """Make all images changed copies of the first, which stays unchanged."""

    def family(x: Tensor, g: Generator) -> Tensor:
        return torch.stack([x[0], *[change(x[0], g) for _ in x[1:]]])

    return family


def each(change: Family) -> Family:
    """Change every image separately."""

    def family(x: Tensor, g: Generator) -> Tensor:
        return torch.stack([change(one, g) for one in x])

    return family


def little(x: Tensor, g: Generator) -> Tensor:
    """Noise of -1, 0 and 1 levels."""
    return x + torch.randint(-1, 2, x.shape, generator=g)


def some_pixels(x: Tensor, g: Generator) -> Tensor:
    """The same, in one pixel of twenty."""
    return x + torch.randint(-1, 2, x.shape, generator=g) * (
        torch.rand(x.shape, generator=g) < 0.05
    )


def three_pixels(x: Tensor, g: Generator) -> Tensor:
    """Two more levels in three pixels."""
    out = x.flatten().clone()
    out[torch.randperm(len(out), generator=g)[:3]] += 2
    return out.reshape(x.shape)


def burst(x: Tensor, g: Generator) -> Tensor:
    """The next frame of an almost static camera: a shift by a fraction of a pixel, and sensor
    noise.
    """
    side = float(torch.rand(1, generator=g)) * 0.3
    moved = (1 - side) * x + side * x.roll(1, -1)
    return moved + 1.5 * torch.randn(x.shape, generator=g)


def portrait(x: Tensor, g: Generator) -> Tensor:
    """Another picture of the same person: different light, a shift by up to a pixel, a smile in one
    corner.
    """
    high, wide = x.shape[-2:]
    light = torch.linspace(-1, 1, wide) * 12 * float(torch.randn(1, generator=g))
    step = int(torch.randint(-1, 2, (1,), generator=g))
    out = x.roll(step, -2) + light
    out[..., high // 2 :, : wide // 3] += 10 * float(torch.randn(1, generator=g))
    return out


def augmented(x: Tensor, g: Generator) -> Tensor:
    """Flip, shift by up to two pixels, and change the contrast."""
    if float(torch.rand(1, generator=g)) < 0.5:
        x = x.flip(-1)
    step = torch.randint(-2, 3, (2,), generator=g).tolist()
    gain = 1 + 0.1 * float(torch.randn(1, generator=g))
    return x.roll(step, (-2, -1)) * gain


def jpeg(x: Tensor, g: Generator) -> Tensor:
    """Compress again with a random quality from 60 to 95."""
    quality = int(torch.randint(60, 96, (1,), generator=g))
    raw = x.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    kept = io.BytesIO()
    Image.fromarray(raw[:, :, 0] if raw.shape[2] == 1 else raw).save(kept, "JPEG", quality=quality)
    again = np.asarray(Image.open(kept))
    return torch.from_numpy(again.copy()).float().reshape(raw.shape).permute(2, 0, 1)


def steps(count: int) -> Family:
    """Reduce to this number of grey levels over the whole range."""

    def change(x: Tensor, g: Generator) -> Tensor:
        return (x / 255 * (count - 1)).round() * (255 / (count - 1))

    return each(change)


def _second_of_steps(x: Tensor, g: Generator) -> Tensor:
    """Few grey levels, and a second image that is one step brighter in a third of its pixels."""
    x = steps(16)(x, g)
    x[1] = x[0] + 17 * (torch.rand(x[0].shape, generator=g) < 0.33)
    return x


FAMILIES: dict[str, Family] = {
    "ordinary": lambda x, g: x,
    "one level brighter": second(lambda x, g: x + 1),
    "noise of one level": second(little),
    "noise in few pixels": second(some_pixels),
    "three pixels": second(three_pixels),
    "noise of five levels": second(lambda x, g: x + 5 * torch.randn(x.shape, generator=g)),
    "all alike": copies(little),
    "one person": copies(portrait),
    "burst": copies(burst),
    "augmented copies": copies(augmented),
    "compressed copies": copies(jpeg),
    "shifted": second(lambda x, g: x.roll(1, -1)),
    "mirrored": second(lambda x, g: x.flip(-1)),
    "posterised": steps(16),
    "posterised and alike": _second_of_steps,
    "scaled from few levels": steps(5),
    "binary": steps(2),
    "low contrast": each(lambda x, g: 120 + (x - 128) / 32),
    "low contrast and alike": lambda x, g: second(little)(
        each(lambda o, _: 120 + (o - 128) / 32)(x, g), g
    ),
    "constant": each(
        lambda x, g: torch.full_like(x, float(torch.randint(0, 256, (1,), generator=g)))
    ),
    "coarse sensor": each(lambda x, g: (x / 8).round() * 8),
    "brightness ladder": lambda x, g: torch.stack([x[0] + k for k in range(len(x))]),
    "the same twice": second(lambda x, g: x),
}


@dataclass
class Count:
    """images: of the attacked nodes. claims: images claimed as exact. false: claims not in the
    batch. bits: bit-identical to a true image.
    """

    images: int = 0
    claims: int = 0
    false: int = 0
    bits: int = 0
    cases: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add another count to this one."""
        self.images += other.images
        self.claims += other.claims
        self.false += other.false
        self.bits += other.bits
        self.cases += other.cases


def planned(scenario: Scenario, family: str, seed: int) -> recording.Plan:
    """Plan a scenario with nodes that hold images of a family."""
    plan = recording.plan(scenario)
    g = Generator().manual_seed(seed)
    for own in plan.rows:
        images = FAMILIES[family](plan.source.x[own].double() * 255, g)
        plan.source.x[own] = (images.round().clamp(0, 255) / 255).to(plan.source.x.dtype)
    return plan


def claimed(found: la.Reconstruction, truth: Tensor, case: str) -> Count:
    """Count the claims of a reconstruction about a node's true images (b, c, h, w)."""
    count = Count(images=len(truth))
    if not len(found.x):
        return count
    away = (found.x[:, None].double() - truth[None].double()).abs().flatten(2).amax(2) * 255
    near = away.amin(1)
    count.bits = int((away.amin(0) < 0.5).sum())
    for k, certificate in enumerate(found.certificates):
        if certificate is Certificate.EXACT:
            count.claims += 1
            if float(near[k]) > 0.5:
                count.false += 1
                count.cases.append(
                    f"{case}: image {k} of node {found.node} is {float(near[k]):.0f} levels off ({found.note})"
                )
    if count.claims > len(truth):
        count.false += 1
        count.cases.append(f"{case}: {count.claims} images of {len(truth)} are called exact")
    return count


def attacked(
    scenario: Scenario,
    family: str,
    seed: int,
    attack: str = "auto",
    nodes: Container[int] = range(1_000),
) -> Count:
    """Record a scenario on images of a family, attack those of the given nodes that hold data, and
    count.
    """
    recorder = recording.record(planned(scenario, family, seed), None)
    holding = hearing.targets(recorder.trace, la.Adversary())
    leaks = la.leaks(recorder.trace, nodes=[node for node in holding if node in nodes])
    found = la.attack(leaks, attack, generator=Generator().manual_seed(seed))
    total = Count()
    for one in found:
        case = f"{family}, {scenario.victim} {scenario.dtype} b={scenario.samples} seed={seed} {dict(scenario.set)}"
        total.add(claimed(one, recorder.truth_record.of(*one.nodes)[0], case))
    return total


def half(
    family: str,
    dtype: torch.dtype,
    batch: int,
    seed: int,
    model: str = "mlp",
    rounds: int = 3,
    data: str = "faces",
) -> Count:
    """Count the same for a server and three clients that exchange gradients in half precision, in a
    user's own recording.
    """
    source = recording.plan(Scenario(victim="fedsgd", nodes=4, data=data, samples=batch, seed=seed))
    g = Generator().manual_seed(seed)
    clients = source.rows[-3:]
    x = torch.stack(
        [
            FAMILIES[family](source.source.x[own].double() * 255, g).round().clamp(0, 255) / 255
            for own in clients
        ]
    )
    args: dict[str, Any] = {"hidden": 64} if model == "mlp" else {}
    spec = la.TaskSpec(model, args, shape=tuple(x.shape[2:]), classes=10, levels=255)
    task = la.Task.build(spec, dtype=torch.float64)
    y = torch.randint(0, 10, x.shape[:2], generator=g)
    w = task.init(g).double()
    params = {"lr": 0.1, "samples": batch}
    graph = la.Graph(4, ((0, 3), (1, 3), (2, 3)))
    with la.Recorder(
        None,
        protocol="fedsgd",
        task=spec,
        graph=graph,
        params=params,
        public={"w0": w},
        options=la.RecorderOptions(dtype=dtype),
    ) as recorder:
        for t in range(1, rounds + 1):
            recorder.send(round=t, src=3, dst=[0, 1, 2], kind="w", value=w)
            gradients = [task.gradient(w, x[i], y[i]) for i in range(3)]
            for i in range(3):
                recorder.send(round=t, src=i, dst=3, kind="g", value=gradients[i])
            w = w - 0.1 * sum(gradients) / 3
        for i in range(3):
            recorder.truth(node=i, x=x[i], y=y[i])
    found = la.attack(la.leaks(recorder.trace), "auto", generator=Generator().manual_seed(seed))
    total = Count()
    for one in found:
        total.add(claimed(one, x[one.node], f"{family}, {dtype} b={batch} seed={seed} {model}"))
    return total
