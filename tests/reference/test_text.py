"""Models that read tokens, the sequences that gradients reveal, and what must not be certified."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from encoders import encoder
from markupsafe import escape
from one_gradient import leaked
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.attacks import Sequences, Tokens
from leakaudit.attacks.tokens import _order
from leakaudit.cli import main
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec, Truth
from leakaudit.inversion.exact import decoders
from leakaudit.reporting.rendering import passages
from leakaudit.scoring import metrics, scoring
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64
Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@cache
def task(width: int = 128, length: int = 16, vocabulary: int = 256, tied: bool = False) -> Task:
    args = {"width": width, "heads": 4, "depth": 1, "tied": tied}
    return Task.build(
        TaskSpec("gpt", args, "next_token", (length,), vocabulary, data="text"), dtype=D
    )


def texts(count: int, length: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Records of the data set, drawn at random."""
    records = data.load(f"text:{length}")
    chosen = torch.randperm(len(records), generator=Generator().manual_seed(seed))[:count]
    return records.x[chosen], records.y[chosen]


def planted(
    made: Task, x: Tensor, y: Tensor, dtype: torch.dtype = D, models: int = 1, moved: float = 0.1
) -> GradientLeak:
    """The gradient at one model, or the difference of those at two models."""
    g = Generator().manual_seed(3)
    first = made.init(g)
    step = moved * first.std() * torch.randn(len(first), generator=g, dtype=D)
    theta = torch.stack([first + k * step for k in range(models)]).to(dtype)
    combination = torch.tensor([[1.0, -1.0][:models]], dtype=D)
    gradients = torch.stack([made.gradient(one, x.to(dtype), y) for one in theta])
    return GradientLeak(
        5,
        torch.arange(models),
        combination,
        (combination @ gradients.to(D)).to(dtype),
        torch.zeros(1, dtype=D),
        (0, made.layout.size),
        theta=theta.to(D),
        batch=len(x),
        wire=0.0 if dtype == D else torch.finfo(dtype).eps,
    )


def recovered(leak: GradientLeak, made: Task) -> Reconstruction:
    return Sequences()(leak, made, Generator().manual_seed(0))


def rows(x: Tensor, y: Tensor) -> list[tuple[int, ...]]:
    """The records as sorted lists of numbers, since their order in a batch does not matter."""
    return sorted(map(tuple, torch.cat([x.long(), y.long()[:, None]], 1).tolist()))


def is_right(found: Reconstruction, x: Tensor, y: Tensor) -> bool:
    return found.y is not None and rows(found.x, found.y) == rows(x, y)


def test_the_records_are_consecutive_and_end_with_the_next_token() -> None:
    records = data.load("text")
    assert records.x.shape[1:] == (32,)
    assert (records.classes, records.tokens, records.levels) == (256, 256, 0)
    assert len(records.x.unique(dim=0)) == len(records) > 5000
    assert float((records.y[:200] == records.x[1:201, 0]).double().mean()) > 0.95
    assert data.load("text:8").x.shape[1:] == (8,)
    assert records.spec("gpt").loss == "next_token"
    with pytest.raises(LeakauditError, match="records of 2 to 1024 bytes"):
        data.load("text:1")


def test_the_model_is_a_pre_norm_decoder() -> None:
    """The same weights in torch's own encoder layer with a causal mask give the same logits."""
    made = task(width=16, length=6, vocabulary=20)
    theta = made.init(Generator().manual_seed(0))
    weights = made.layout.split(theta + 0.1 * torch.randn(len(theta), dtype=D))
    layer = encoder(weights, 16, 4)
    x = torch.randint(20, (3, 6))
    stream = weights["tokens.weight"][x] + weights["places.weight"]
    mask = torch.full((6, 6), -math.inf, dtype=D).triu(1)
    out = F.layer_norm(
        layer(stream, src_mask=mask), (16,), weights["norm.weight"], weights["norm.bias"]
    )
    flat = torch.cat([weights[name].flatten() for name in made.layout.names])
    torch.testing.assert_close(made.logits(flat, x), out @ weights["head.weight"].T)
    y = torch.randint(20, (3,))
    targets = torch.cat([x[:, 1:], y[:, None]], 1)
    expected = F.cross_entropy((out @ weights["head.weight"].T).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(made.loss(flat, x, y), expected)


def test_models_and_data_must_fit() -> None:
    with pytest.raises(LeakauditError, match="needs a model that reads tokens"):
        Task.build(TaskSpec("mlp", {}, "next_token", (8,), 256))
    with pytest.raises(LeakauditError, match="does not fit loss 'cross_entropy'"):
        Task.build(TaskSpec("gpt", {}, shape=(8,), classes=256))
    with pytest.raises(LeakauditError, match="multiple of heads"):
        Task.build(TaskSpec("gpt", {"width": 10}, "next_token", (8,), 256))


@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_a_batch_comes_back_with_the_tokens_behind_it(dtype: torch.dtype) -> None:
    x, y = texts(4)
    found = recovered(planted(task(), x, y, dtype), task())
    assert is_right(found, x, y)
    assert found.certificate is Certificate.EXACT
    assert found.certified == 4
    assert found.residual < 1e-5


def test_a_difference_of_two_rounds_suffices() -> None:
    x, y = texts(3)
    found = recovered(planted(task(), x, y, models=2), task())
    assert is_right(found, x, y)
    assert found.certificate is Certificate.EXACT


def repeated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x[[0, 1, 0, 0]], y[[0, 1, 0, 0]]


def forked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Equal sequences that continue with different tokens."""
    return x[[0, 1, 0, 0]], torch.tensor([7, 8, 9, 7])


def shared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences that differ at the end only."""
    return torch.cat([x[:1, :13].expand(len(x), -1), x[:, 13:]], 1), y


def monotone(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One token everywhere."""
    return torch.full_like(x, 65.0), torch.full_like(y, 65)


def padded(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences of different lengths, with zeros behind them."""
    out = x.clone()
    for k, row in enumerate(out):
        row[3 + 2 * k :] = 0
    return out, torch.zeros_like(y)


def permuted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same tokens in another order."""
    order = torch.stack(
        [torch.randperm(16, generator=Generator().manual_seed(k)) for k in range(4)]
    )
    return x[:1].expand(4, -1).gather(1, order), y


@pytest.mark.parametrize("change", [repeated, forked, shared, monotone, padded, permuted])
@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_no_batch_is_certified_falsely(change: Change, dtype: torch.dtype) -> None:
    x, y = change(*texts(4))
    found = recovered(planted(task(), x, y, dtype), task())
    assert is_right(found, x, y) or found.certificate is not Certificate.EXACT
    if dtype == D:
        assert is_right(found, x, y)
        assert found.certificate is Certificate.EXACT


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("change", [forked, shared])
def test_texts_that_share_prefixes_are_certified_in_a_narrow_model(
    change: Change, tied: bool
) -> None:
    """64 tokens, and a width of 48; the number of different prefixes counts."""
    x, y = change(*texts(4))
    made = task(width=48, tied=tied)
    found = recovered(planted(made, x, y), made)
    assert is_right(found, x, y)
    assert found.certificate is Certificate.EXACT


def test_a_gradient_of_another_batch_is_not_certified() -> None:
    """Neither a wrong size of the batch nor a changed or noisy gradient gets a certificate."""
    x, y = texts(4)
    leak = planted(task(), x, y)
    g = Generator().manual_seed(1)
    noise = 1e-3 * leak.value.std() * torch.randn(leak.value.shape, generator=g, dtype=D)
    for wrong in (
        replace(leak, batch=3),
        replace(leak, batch=5),
        replace(leak, value=leak.value * 1.5),
        replace(leak, value=leak.value + noise),
    ):
        assert recovered(wrong, task()).certificate is not Certificate.EXACT


def test_without_attention_the_order_does_not_follow() -> None:
    """If the attention adds nothing, a layer behind it sees single tokens, and many orders fit."""
    x, y = texts(3)
    made = task()
    leak = planted(made, x, y)
    assert leak.theta is not None
    theta = leak.theta.clone()
    for part in ("weight", "bias"):
        theta[:, made.layout.slices[f"blocks.0.join.{part}"]] = 0
    value = torch.stack([made.gradient(theta[0], x.double(), y)])
    found = recovered(replace(leak, value=value, theta=theta), made)
    assert found.certificate is not Certificate.EXACT


def test_too_many_tokens_are_named_in_one_line() -> None:
    x, y = texts(8)
    narrow = task(width=64)
    found = recovered(planted(narrow, x, y), narrow)
    assert found.certificate is Certificate.FAILED
    assert "too many for this width" in found.note
    assert not len(found.x)


def ended(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences that end with a token that occurs in another one, and one that does not occur."""
    return x, torch.tensor([int(x[1, 0]), int(x[0, 3]), 255, int(x[2, 5])])


@pytest.mark.parametrize(
    "change", [None, ended, repeated, forked, shared, monotone, padded, permuted]
)
@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_a_tied_embedding_hides_neither_counts_nor_last_tokens(
    change: Change | None, dtype: torch.dtype
) -> None:
    x, y = texts(4)
    if change is not None:
        x, y = change(x, y)
    made = task(tied=True)
    found = recovered(planted(made, x, y, dtype), made)
    assert is_right(found, x, y) or found.certificate is not Certificate.EXACT
    if dtype == D:
        assert is_right(found, x, y)
        assert found.certificate is Certificate.EXACT


def test_a_difference_with_a_tied_embedding_suffices() -> None:
    x, y = texts(3)
    made = task(tied=True)
    found = recovered(planted(made, x, y, models=2), made)
    assert is_right(found, x, y)
    assert found.certificate is Certificate.EXACT


def test_a_tied_embedding_needs_tokens_that_do_not_occur() -> None:
    made = task(vocabulary=40, tied=True)
    x = torch.arange(64).reshape(4, 16) % 40
    found = recovered(planted(made, x.double(), x[:, 0]), made)
    assert found.certificate is Certificate.APPROXIMATE
    assert found.y is None
    assert "0 tokens do not occur, which is too few" in found.note


def strange(**args: Any) -> Task:
    spec = TaskSpec("gpt2_of_a_stranger:Gpt", args, "next_token", (16,), 256, data="text")
    return Task.build(spec, dtype=D, trusted=True)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"tied": False, "bias": True},
        {"tied": False, "gelu": "tanh", "heads": 1},
        {"bias": True, "gelu": "tanh", "heads": 12},
    ],
)
def test_a_model_that_computes_what_gpt2_does_is_read_as_one(args: dict[str, Any]) -> None:
    made = strange(**args)
    read = decoders.reading(made)
    assert isinstance(read, decoders.Reading)
    assert read.sizes.heads == args.get("heads", 6)
    assert read.sizes.tied == args.get("tied", True)
    assert read.approximate == args.get("gelu", "none")
    x, y = texts(3)
    for models in (1, 2):
        few = (x, y) if models == 1 else (x[:2], y[:2])
        found = recovered(planted(made, *few, models=models), made)
        assert is_right(found, *few)
        assert found.certificate is Certificate.EXACT


def test_a_model_that_only_has_the_names_of_gpt2_is_refused() -> None:
    made = strange(pre=False)
    assert "does not compute what GPT-2 does" in str(decoders.reading(made))
    leak = planted(made, *texts(2))
    assert "does not compute what GPT-2 does" in str(Sequences().refuses(leak, made))


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("one more layer", "GPT-2 has no v_head"),
        ("one more parameter", "GPT-2 has no gate"),
        ("bias of the output layer", "GPT-2 has no lm_head.bias"),
    ],
)
def test_a_model_with_more_than_gpt2_is_refused(odd: str, said: str) -> None:
    made = strange(odd=odd)
    assert said in str(Sequences().refuses(planted(made, *texts(2)), made))


def test_initial_weights_of_zero_do_not_hide_the_number_of_heads() -> None:
    read = decoders.reading(strange(odd="zero projections"))
    assert isinstance(read, decoders.Reading)
    assert (read.sizes.heads, read.approximate) == (6, "none")


@pytest.mark.parametrize("tied", [False, True])
def test_a_token_that_is_read_as_another_one_is_not_certified(tied: bool) -> None:
    made = strange(odd="an unknown token", tied=tied)
    x, y = texts(3)
    x[0, 0] = 3
    found = recovered(planted(made, x, y), made)
    assert found.certificate is not Certificate.EXACT
    assert "treats some tokens in another way" in found.note


@pytest.mark.parametrize(("name", "needed"), [("wpe", False), ("ln_f", False), ("lm_head", True)])
def test_frozen_layers_are_read(name: str, needed: bool) -> None:
    made = strange(tied=False, frozen=name)
    x, y = texts(3)
    if needed:
        assert "head.weight, which is frozen" in str(Sequences().refuses(planted(made, x, y), made))
        return
    found = recovered(planted(made, x, y), made)
    assert is_right(found, x, y)
    assert found.certificate is Certificate.EXACT


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_no_batch_of_a_tied_model_is_certified_falsely(seed: int) -> None:
    """Random sizes, equal and similar sequences, differences, noise and trained weights."""
    g = Generator().manual_seed(seed)

    def drawn(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=g))]

    made = task(width=drawn(64, 96, 128), tied=True)
    x, y = texts(drawn(1, 2, 3, 4), seed=seed)
    if len(x) == 4:
        change = drawn(ended, repeated, forked, shared, monotone, padded, permuted)
        x, y = change(x, y)
    leak = planted(made, x, y, drawn(D, torch.float32), drawn(1, 1, 2), drawn(0.001, 0.1, 1.0))
    if drawn(False, False, True):
        size = drawn(1e-12, 1e-8, 1e-4) * leak.value.std()
        noise = torch.randn(leak.value.shape, generator=g, dtype=D).to(leak.value)
        stated = torch.full_like(leak.std, float(size) * drawn(0.0, 1.0))
        leak = replace(leak, value=leak.value + size * noise, std=stated)
    if drawn(False, False, False, True):
        leak = replace(leak, batch=len(x) + drawn(-1, 1) or 1)
    found = recovered(leak, made)
    right = is_right(found, x, y)
    if found.y is not None and leak.batch != len(x):  # twice a batch has the same mean gradient
        right = set(rows(found.x, found.y)) == set(rows(x, y))
    assert right or found.certificate is not Certificate.EXACT


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("change", [None, forked, repeated])
def test_an_undeclared_batch_size_is_found_but_not_certified(
    change: Change | None, tied: bool
) -> None:
    x, y = texts(4) if change is None else change(*texts(4))
    made = task(tied=tied)
    found = recovered(replace(planted(made, x, y), batch=None), made)
    assert is_right(found, x, y)
    assert found.certificate is Certificate.APPROXIMATE
    assert "4 is the smallest that fits" in found.note


def test_what_it_cannot_use_is_refused_in_one_line() -> None:
    x, y = texts(2)
    leak = planted(task(), x, y)
    assert "does not know them" in str(Sequences().refuses(replace(leak, theta=None), task()))
    most = task().layout.size - 1
    half = replace(leak, value=leak.value[:, :most], columns=(0, most))
    assert "all parameters" in str(Sequences().refuses(half, task()))
    with pytest.raises(AttackError, match="cannot use this leak"):
        recovered(half, task())


def test_the_tokens_of_many_adamw_steps_follow_from_eight_bits() -> None:
    """Of 100 local steps with other texts and weight decay, sent as int8 with one scale."""
    made = task(width=16, length=8)
    theta = made.init(Generator().manual_seed(0)).float()
    x, y = texts(200, 8)
    weights = theta.clone().requires_grad_()
    optimiser = torch.optim.AdamW([weights], lr=1e-3, weight_decay=0.1)
    for k in range(100):
        weights.grad = made.gradient(weights, x[2 * k : 2 * k + 2], y[2 * k : 2 * k + 2])
        optimiser.step()
    update = theta - weights.detach()
    step = float(update.abs().max()) / 127
    sent = (update / step).round().clamp(-127, 127) * step
    rounding = torch.tensor([step / math.sqrt(12)])
    leak = replace(leaked(made, sent, theta, batch=2)[0], std=rounding, inner=100)
    found = Tokens()(leak, made, Generator().manual_seed(0))
    occurred = sorted(set(x.long().flatten().tolist()))
    assert f"{len(occurred)} different tokens: " in found.note
    listed = [
        int(one) for one in re.findall(r"\d+", found.note.partition(": ")[2].partition(";")[0])
    ]
    assert listed == occurred[: len(listed)]
    assert len(listed) == 30


def test_a_report_shows_text_beside_text(tmp_path: Path) -> None:
    """In the terminal and in HTML, escaped, and not at all if it is redacted."""
    scenario = la.Scenario(
        victim="fedsgd",
        nodes=2,
        rounds=1,
        data="text:8",
        samples=2,
        model="gpt",
        set={"width": 32},
    )
    trace, truth = la.record(scenario, tmp_path / "trace.pt")
    assert main(["attack", str(tmp_path / "trace.pt"), "-o", str(tmp_path / "out"), "-q"]) == 0
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {one["attack"] for one in record["findings"]} == {"sequences"}
    assert {one["certificate"]["name"] for one in record["findings"]} == {"EXACT"}
    assert "recovered all 4 training texts of nodes 0, 1 exactly" in record["summary"]
    originals = [passages.text_of(row.long().numpy()) for row in truth.x]
    assert len(originals) == 4
    text = la.report(tmp_path / "out", "text")
    page = la.report(tmp_path / "out", "html")
    hidden = la.report(tmp_path / "out", "html", redact=True)
    for original in originals:
        assert text.count(original) == 2
        assert page.split("<main>")[1].count(str(escape(original))) == 2
        assert str(escape(original)) not in hidden
    assert trace.task.is_text


def test_texts_are_scored_by_tokens() -> None:
    x, y = texts(2)
    spec = task().spec
    pool = texts(6, seed=1)[0]
    truth = Truth("run", spec, x, y, torch.tensor([5, 5]), torch.arange(2), pool)
    guess = x.flip(0).clone().long()
    guess[0, :4] = 1
    found = Reconstruction(5, "sequences", guess, y.flip(0), Certificate.APPROXIMATE, 0.0)
    (score,) = scoring.score(found, truth)
    assert score.matched == (1, 0)
    assert score.exact == (True, False)
    assert score.tokens_correct == (1.0, 0.75)
    assert score.label_correct == (True, True)
    assert score.identified == (True, True)
    assert score.psnr is None
    assert float(metrics.token_f1(x[:1], x[:1].flip(1))) == 1.0
    assert scoring.definitions(spec)["exact"] == "all tokens equal"


@pytest.mark.parametrize(("size", "found"), [(1e-5, True), (1e-7, False)])
def test_a_token_is_found_by_a_row_far_smaller_than_the_largest(size: float, found: bool) -> None:
    """Relative to the largest row; the limit is a millionth."""
    made = task(width=16, length=4)
    table = torch.zeros(256, 16, dtype=D)
    table[7, 0], table[9, 0] = 1.0, size
    leak = planted(made, *texts(1, 4))
    at = made.layout.slices["tokens.weight"]
    leak.value[0, at] = table.flatten()
    shown = Tokens()(replace(leak, batch=None), made, Generator().manual_seed(0))
    assert shown.tokens is not None
    assert shown.tokens.tolist() == ([7, 9] if found else [7])


def test_a_position_with_two_tokens_gives_no_order() -> None:
    places = torch.eye(3, 5, dtype=D)
    found = _order(torch.stack([places[1], places[0] + places[2]]), places, 3)
    assert found is not None
    assert found[0].tolist() == [1, 0, 1]
    assert _order(torch.stack([places[0], places[0] + places[1], places[2]]), places, 3) is None
