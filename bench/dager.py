"""Whole sequences from one gradient: the attack `sequences` beside the public code of DAGER.

    sh bench/_dager.sh CHECKOUT        creates an environment with transformers and runs this in it
    python bench/dager.py --dager CHECKOUT [--batches 1 2 4 8 16] [--bits 32 64] [--width 768]

CHECKOUT is a folder with the code of DAGER (Petrov et al. 2024), insait-institute's repository
dager-gradient-inversion. Both attacks run in one process on one thread. They receive the same
numbers: the weights of `gpt`, random as those of a new GPT-2, and the gradient of one batch of
Python's documentation, a byte per token. The order alternates from batch to batch.

DAGER runs with its own settings for GPT-2. Its rank tolerance is an absolute number that it lets
the user choose: *rule* is the advice of its README (1e-7 for 1 or 2 sequences, 1e-8 up to 16),
*none* its default (that of numpy), and a number is used as it is. CPU seconds are those of its
three steps (rank and spaces, tokens, sequences), without the gradient or any comparison with the
truth. Ours are those of the whole attack. Prints the rows of docs/text.md.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads its linear algebra

import torch
from _limits import OutOfTimeError, at_most
from torch import Generator, Tensor

from leakaudit.attacks import Sequences
from leakaudit.core.leak import GradientLeak
from leakaudit.scoring import metrics
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

ABSENT = (
    "DAGER is not in {}: clone insait-institute/dager-gradient-inversion from GitHub and pass its "
    "folder (--dager FOLDER)"
)
PACKAGES = "the environment lacks {}: sh bench/_dager.sh FOLDER creates one that has it"

# Bytes are tokens 0 to 255. DAGER needs one more, which ends a text and never occurs in ours.
BYTES = 256
ASCII = 128
SPACE = 32

# Largest difference of logits between both implementations of the network, relative to the largest
# logit, in units of the number format: sums over the width of rounded products.
LOGITS = 1000.0


@dataclass(frozen=True)
class Case:
    """One batch and its gradient.

    Attributes:
        task: The network; its parameters are set to `theta`.
        theta: (d,) weights.
        gradient: (d,) gradient of the mean loss, in the number format of the weights.
        x: (b, length) tokens.
        y: (b,) tokens behind them.
    """

    task: Task
    theta: Tensor
    gradient: Tensor
    x: Tensor
    y: Tensor

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return sum(name.endswith("norm1.weight") for name in self.task.layout.names)

    @property
    def bits(self) -> int:
        """Size of a number."""
        return torch.finfo(self.theta.dtype).bits


@dataclass
class Outcome:
    """What an attack returned.

    Attributes:
        found: Token sequences.
        seconds: CPU time.
        certified: Number of sequences that the attack itself calls exact.
        note: What else it said.
    """

    found: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    certified: int = 0
    note: str = ""


def case(count: int, bits: int, width: int, depth: int, length: int) -> Case:
    """Draw a batch and compute its gradient.

    The seed is the size of the batch, so both number formats get the same sentences and weights.
    """
    dtype = torch.float64 if bits == 64 else torch.float32
    records = data.load(f"text:{length}")
    spec = records.spec("gpt", {"width": width, "depth": depth, "heads": width // 64})
    task = Task.build(replace(spec, classes=BYTES + 1), dtype=dtype)

    # The tokenizer of transformers reads and writes text, so a record must not cut a character.
    readable = (records.x < ASCII).all(1).nonzero()[:, 0]
    order = torch.randperm(len(readable), generator=Generator().manual_seed(count))
    chosen = readable[order[:count]]
    x = records.x[chosen].long()
    y = records.y[chosen]

    exact = Task.build(task.spec, dtype=torch.float64).init(Generator().manual_seed(count))
    theta = exact.to(dtype)
    torch.nn.utils.vector_to_parameters(theta.clone(), task.module.parameters())
    return Case(task, theta, task.gradient(theta, x.to(dtype), y), x, y)


def ours(made: Case, limit: int) -> Outcome:
    """Run the attack `sequences` with its defaults."""
    leak = GradientLeak(
        0,
        torch.ones(1, dtype=torch.long),
        torch.ones(1, 1, dtype=torch.float64),
        made.gradient[None],
        torch.zeros(1, dtype=torch.float64),
        (0, made.task.layout.size),
        theta=made.theta.double()[None],
        batch=len(made.x),
        wire=torch.finfo(made.theta.dtype).eps,
    )
    task = Task.build(made.task.spec, dtype=torch.float64)
    spent = Stopwatch()
    outcome = Outcome()
    try:
        with at_most(limit), spent:
            result = Sequences()(leak, task, Generator().manual_seed(0))
        outcome.found = result.x.long().tolist()
        outcome.certified = result.certified
        outcome.note = result.note
    except OutOfTimeError:
        outcome.note = f"stopped after {limit} CPU s"
    outcome.seconds = spent.seconds
    return outcome


class Stopwatch:
    """CPU seconds of the blocks and functions that it measures."""

    def __init__(self) -> None:
        """Start at zero."""
        self.seconds = 0.0
        self._begun = 0.0

    def __enter__(self) -> None:
        """Begin to measure."""
        self._begun = time.process_time()

    def __exit__(self, *error: object) -> None:
        """Add what was used."""
        self.seconds += time.process_time() - self._begun

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, measured."""

        def measured(*args: Any, **named: Any) -> Any:
            with self:
                return work(*args, **named)

        return measured


class Dager:
    """The code of DAGER in a folder, with a GPT-2 of ours in place of a download."""

    def __init__(self, folder: Path, home: Path) -> None:
        """Import it.

        Args:
            folder: A checkout.
            home: An empty folder, which becomes the current one: DAGER only accepts networks by
                the names that it knows, and transformers looks for "gpt2" here first.
        """
        self.transformers = importlib.import_module("transformers")
        # These two serve its downloads and its low-rank adapters, which are not used here.
        for name in ("datasets", "peft"):
            empty: Any = ModuleType(name)
            empty.load_dataset = empty.load_metric = None
            sys.modules[name] = empty
        sys.path.insert(0, str(folder))
        os.chdir(home)
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("HF_TOKEN", "none")  # it reads one, for networks that need it
        sys.argv = ["attack.py", *settings(1, 32, "none")]
        self.attack = importlib.import_module("attack")
        self.get_args = importlib.import_module("args_factory").get_args
        self.filters = {
            name: getattr(self.attack, name) for name in ("filter_l1", "filter_decoder")
        }

    def __call__(self, made: Case, tolerance: str, limit: int) -> Outcome:
        """Run it on one batch, as its function `reconstruct` does."""
        self._save(made)
        args = self.get_args(settings(len(made.x), made.bits, tolerance))
        outcome = Outcome()
        spent = Stopwatch()
        decoded: list[Any] = []
        with torch.random.fork_rng(), muted():
            torch.default_generator.manual_seed(args.rng_seed)
            wrapper = self.attack.ModelWrapper(args)
            check(made, wrapper.model)
            # It names the layers of 12 blocks, of which the network may have fewer.
            wrapper.layer_ids = wrapper.layer_ids[: made.depth]
            gradient = tuple(in_their_layout(made.task.layout.split(made.gradient), made.depth))
            wrapper.compute_grads = lambda batch, labels: gradient
            wrapper.get_matrices_expansions = spent.around(wrapper.get_matrices_expansions)
            for name, work in self.filters.items():
                setattr(self.attack, name, spent.around(work))
            decode = wrapper.tokenizer.decode

            def listen(tokens: Any) -> Any:
                decoded.append(tokens)
                return decode(tokens)

            wrapper.tokenizer.decode = listen
            texts = [bytes(row).decode() for row in made.x.tolist()]
            try:
                with at_most(limit):
                    self.attack.reconstruct(args, "cpu", (texts, made.y[None]), None, wrapper)
            except OutOfTimeError:
                outcome.note = f"stopped after {limit} CPU s"
            except Exception as error:  # whatever its code raises is a result of the comparison
                outcome.note = f"{type(error).__name__}: {error}".splitlines()[0]
        # Sequences are decoded from lists, and the truth, which comes after them, from tensors.
        guesses = [tokens for tokens in decoded if isinstance(tokens, list)]
        outcome.found = guesses[: len(made.x)]
        outcome.seconds = spent.seconds
        return outcome

    def _save(self, made: Case) -> None:
        """Write the network and a tokenizer of bytes where it looks for them."""
        spec = made.task.spec
        net = gpt2(self.transformers, spec.shape[0], dict(spec.args)).to(made.theta.dtype)
        weights = in_their_layout(made.task.layout.split(made.theta), made.depth)
        with torch.no_grad():
            for parameter, weight in zip(net.parameters(), weights, strict=True):
                if parameter.shape != weight.shape:
                    raise SystemExit(f"GPT-2 has {parameter.shape}, and gpt has {weight.shape}")
                parameter.copy_(weight)
        net.save_pretrained("gpt2")
        names = importlib.import_module("transformers.models.gpt2.tokenization_gpt2")
        vocabulary = {sign: byte for byte, sign in names.bytes_to_unicode().items()}
        vocabulary["<|endoftext|>"] = BYTES
        Path("vocabulary.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        Path("merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        tokenizer = self.transformers.GPT2TokenizerFast(
            "vocabulary.json", "merges.txt", clean_up_tokenization_spaces=False
        )
        tokenizer.save_pretrained("gpt2")


def gpt2(transformers: Any, length: int, args: dict[str, Any]) -> Any:
    """Return the network of transformers that is `gpt`: GPT-2 with the exact GELU."""
    config = transformers.GPT2Config(
        vocab_size=BYTES + 1,
        n_positions=length,
        n_embd=args["width"],
        n_layer=args["depth"],
        n_head=args["heads"],
        activation_function="gelu",
        tie_word_embeddings=False,
        bos_token_id=BYTES,
        eos_token_id=BYTES,
    )
    return transformers.GPT2LMHeadModel(config)


def in_their_layout(parts: dict[str, Tensor], depth: int) -> list[Tensor]:
    """Arrange the parameters of `gpt`, or their gradients, as GPT-2 of transformers has them.

    Its fully connected layers store the transposed weight, and one of them computes queries, keys
    and values.
    """
    arranged = [parts["tokens.weight"], parts["places.weight"]]
    for k in range(depth):
        block = f"blocks.{k}."
        joint = [block + name for name in ("query", "key", "value")]
        arranged += [parts[block + "norm1.weight"], parts[block + "norm1.bias"]]
        arranged.append(torch.cat([parts[name + ".weight"] for name in joint]).T.contiguous())
        arranged.append(torch.cat([parts[name + ".bias"] for name in joint]))
        arranged += [parts[block + "join.weight"].T.contiguous(), parts[block + "join.bias"]]
        arranged += [parts[block + "norm2.weight"], parts[block + "norm2.bias"]]
        arranged += [parts[block + "up.weight"].T.contiguous(), parts[block + "up.bias"]]
        arranged += [parts[block + "down.weight"].T.contiguous(), parts[block + "down.bias"]]
    return [*arranged, parts["norm.weight"], parts["norm.bias"], parts["head.weight"]]


def check(made: Case, net: Any) -> None:
    """Stop if both networks do not have the same logits."""
    with torch.no_grad():
        mine = made.task.module(made.x)
        other = net(made.x).logits
    apart = float((mine - other).abs().max() / mine.abs().max())
    if apart > LOGITS * torch.finfo(mine.dtype).eps:
        raise SystemExit(f"both networks should be equal, but their logits are {apart:.1g} apart")


def settings(count: int, bits: int, tolerance: str) -> list[str]:
    """Return the arguments of DAGER's script for GPT-2, on a CPU."""
    told = "--split val --n_inputs 1 --l1_filter all --l2_filter non-overlap --model_path gpt2"
    told += " --dataset cola --task next_token_pred --device cpu"
    told += f" --batch_size {count} --precision {'double' if bits == 64 else 'full'}"
    if tolerance == "rule":
        tolerance = "1e-7" if count <= 2 else "1e-8" if count <= 16 else "1e-9"
    if tolerance != "none":
        told += f" --rank_tol {tolerance}"
    return told.split()


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Keep what its code prints off the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def scores(found: Sequence[Sequence[int]], x: Tensor) -> tuple[int, float, Tensor]:
    """Compare every sequence with the nearest one that was found.

    Args:
        found: Token sequences, in any order and of any length.
        x: (b, length) true tokens.

    Returns:
        The number of sequences without an error, the share of correct tokens, and (b, length)
        nearest sequences, in which spaces stand for tokens that are missing or not bytes.
    """
    nearest = torch.full_like(x, -1)
    for place, true in enumerate(x):
        for guess in found:
            row = torch.full_like(true, -1)
            some = torch.tensor(list(guess)[: len(true)], dtype=row.dtype)
            row[: len(some)] = some
            if int((row == true).sum()) > int((nearest[place] == true).sum()):
                nearest[place] = row
    right = nearest == x
    readable = (nearest >= 0) & (nearest < BYTES)
    exact = int(right.all(1).sum())
    return exact, float(right.double().mean()), torch.where(readable, nearest, SPACE)


def row(made: Case, name: str, outcome: Outcome) -> str:
    """Return a row of the table."""
    count = len(made.x)
    exact, share, nearest = scores(outcome.found, made.x)
    words = "-"
    if metrics.can_rouge():
        found = metrics.rouge(nearest, made.x)
        words = " / ".join(f"{float(found[k].mean()):.2f}" for k in ("rouge1", "rouge2"))
    certificate = f"{outcome.certified} EXACT" if outcome.certified else "none"
    seconds = f"{outcome.seconds:.1f}"
    if outcome.note.startswith("stopped"):
        seconds = f"over {outcome.seconds:.0f}"
    elif outcome.note and not outcome.found:
        name = f"{name} ({outcome.note})"
    cells = (count, made.bits, name, f"{exact} of {count}", f"{share:.2f}", words)
    return "| " + " | ".join(map(str, (*cells, certificate, seconds))) + " |\n"


def main() -> None:
    """Print one row for each batch, number format and attack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dager", type=Path, default=Path("dager-gradient-inversion"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--bits", type=int, nargs="+", choices=(32, 64), default=[32, 64])
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, as in GPT-2")
    parser.add_argument("--depth", type=int, default=2, help="number of blocks; GPT-2 has 12")
    parser.add_argument("--length", type=int, default=32, help="tokens of a sequence")
    parser.add_argument("--tolerances", nargs="+", default=["rule", "none", "1e-6"])
    parser.add_argument("--seconds", type=int, default=300, help="CPU seconds of an attack")
    asked = parser.parse_args()
    if not (asked.dager / "attack.py").is_file():
        raise SystemExit(ABSENT.format(asked.dager))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        try:
            dager = Dager(asked.dager.resolve(), Path(home))
        except ImportError as error:
            raise SystemExit(PACKAGES.format(error.name)) from None
        attacks: dict[str, Callable[[Case], Outcome]]
        attacks = {"`sequences`": lambda made: ours(made, asked.seconds)}
        for tolerance in asked.tolerances:

            def theirs(made: Case, tolerance: str = tolerance) -> Outcome:
                return dager(made, tolerance, asked.seconds)

            attacks[f"DAGER, {tolerance}"] = theirs

        first = case(1, 32, 64, 2, 8)
        for attack in attacks.values():
            attack(first)  # torch loads code at the first call, which is not measured
        sys.stdout.write(
            "| b | float | attack, rank tolerance | exact | tokens | ROUGE-1 / 2 | certificate "
            "| CPU s |\n|--:|--:|---|--:|--:|--:|---|--:|\n"
        )
        order = list(attacks)
        for bits in asked.bits:
            for count in asked.batches:
                made = case(count, bits, asked.width, asked.depth, asked.length)
                outcomes = {}
                for name in order:
                    gc.collect()
                    outcomes[name] = attacks[name](made)
                order.reverse()
                for name in attacks:
                    sys.stdout.write(row(made, name, outcomes[name]))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
