"""What a reviewer of the readers found, one test per cause: limits on what small files unpack to,
and numbers at the ends of all floats.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import math
import statistics
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import pytest
import torch
from corpus import FACES, GATE, SMALL
from invoked import refused
from PIL import Image

from leakaudit._util import averages
from leakaudit._util.decoding import from_json
from leakaudit._util.untrusted import npz
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph
from leakaudit.inversion.exact import extreme_rays
from leakaudit.judging.gate import baseline, compare
from leakaudit.protocols.equations import file as protocol_file
from leakaudit.reporting.figures import curves, paper_strips, plots
from leakaudit.reporting.rendering import gallery, passages
from leakaudit.reporting.results import record_file
from leakaudit.reporting.viewing import running
from leakaudit.reporting.viewing.index import RunIndex
from leakaudit.scoring import lpips_weights
from leakaudit.tasks import data_files
from leakaudit.traces import trace_file
from leakaudit.traces._storage import foreign

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an attack on pictures."""
    folder = tmp_path_factory.mktemp("attacked")
    trace = str(folder / "c.pt")
    assert main(["record", "fedsgd", "-o", trace, *FACES, "--set", "hidden=4"]) == 0
    assert main(["attack", trace, "-o", str(folder / "out"), "-q"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a gate with a baseline and results."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "leakaudit.toml").write_text(GATE.replace('"2030-01-01"', "2030-01-01"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["check", "--update", "--reason", "first", "-q"]) == 0
        assert main(["check", "-o", "out", "-q"]) in (0, 1, 3)
    return folder


def changed(record: Path, change: Callable[[dict[str, Any]], None], folder: str = "out") -> Path:
    """Write a changed copy of results.json into a folder beside the files of the record."""
    target = Path(folder)
    target.mkdir()
    for file in record.iterdir():
        if file.suffix == ".npz":
            (target / file.name).write_bytes(file.read_bytes())
    values = json.loads((record / "results.json").read_text())
    change(values)
    (target / "results.json").write_text(json.dumps(values))
    return target


# ---------------------------------------------------------------------------------------------
# Small files that unpack to much
# ---------------------------------------------------------------------------------------------


def zeros(path: Path, **arrays: tuple[int, ...]) -> Path:
    """Write compressed arrays of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, shape in arrays.items():
            file.writestr(f"{name}.npy", mutations.npy(np.zeros(shape, np.uint8)))
    return path


def test_pixels_of_zeros_are_counted_as_float32(tmp_path: Path) -> None:
    path = zeros(tmp_path / "d.npz", x=(100_000, 30, 30), y=(100_000,))
    with pytest.raises(LeakauditError, match="x has 360000000 bytes as float32, expected at most"):
        data_files.read_npz(path)


def test_black_pictures_are_counted_as_float32(tmp_path: Path) -> None:
    for k in range(5):
        Image.new("L", (4_000, 4_000)).save(tmp_path / f"{k}.png")
    with pytest.raises(LeakauditError, match="the most for files of their size"):
        data_files.read_folder(tmp_path)


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
@pytest.mark.parametrize("line", [b"\n", b"0" * 100 + b"\n"])
def test_a_text_of_compressed_lines(
    line: bytes, ending: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"s.{ending}"
    path.write_bytes(compress(line * (10**7 // len(line))))
    with pytest.raises(LeakauditError, match=r"and a text under \d+ bytes, got more"):
        data_files.read_libsvm(path)


def test_a_damaged_compressed_text(tmp_path: Path) -> None:
    """It ended with zlib.error."""
    raw = bytearray(gzip.compress(b"1 1:1\n" * 1_000))
    raw[12:20] = b"\xff" * 8
    (tmp_path / "s.gz").write_bytes(raw)
    with pytest.raises(LeakauditError, match="cannot be read"):
        data_files.read_libsvm(tmp_path / "s.gz")


def test_a_compressed_text_of_usual_numbers_is_read(tmp_path: Path) -> None:
    """Few entries per record, whole numbers, and the same label: it shrinks well."""
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(60_000):
        columns = np.sort(generator.choice(120, 14, replace=False)) + 1
        lines.append("+1 " + " ".join(f"{column}:1" for column in columns))
    raw = "\n".join(lines).encode()
    path = tmp_path / "s.bz2"
    path.write_bytes(bz2.compress(raw))
    assert len(raw) > 2 * data_files.TEXT
    assert data_files.read_libsvm(path)[0].shape == (60_000, 120)


def test_many_small_arrays_of_zeros_are_one_large_trace(tmp_path: Path) -> None:
    path = zeros(tmp_path / "x.npz", **{f"public.{k}": (10**7,) for k in range(10)})
    with pytest.raises(LeakauditError, match="it unpacks to more than 200 times its size"):
        foreign.read_npz(path, 1e9)


def test_compressed_weights_are_refused(tmp_path: Path) -> None:
    weights = mutations.torch_bytes({"net.0.weight": torch.zeros(10**6), "lin.0": torch.zeros(4)})
    (tmp_path / "w.pth").write_bytes(mutations.deflated(weights))
    with pytest.raises(LeakauditError, match=r"cannot read .*w\.pth: it is compressed"):
        lpips_weights.read(tmp_path / "w.pth")


def test_ten_thousand_samples_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took 2.5 GB. Blocks change no p-value."""
    generator = np.random.default_rng(1)
    new, old = generator.normal(0.3, 1, 30).tolist(), generator.normal(0, 1, 30).tolist()
    whole = compare.paired(new, old, 0.0), compare.unpaired(new, old, 0.0)
    monkeypatch.setattr(compare, "_BLOCK", 1_000)
    assert (compare.paired(new, old, 0.0), compare.unpaired(new, old, 0.0)) == whole
    largest = 0
    for draws, count in ((compare.EXACT, 10_000), (compare.EXACT // 8, 20_000)):
        monkeypatch.undo()
        blocks = list(compare._blocks(draws, count))
        assert sum(blocks) == draws
        largest = max(largest, max(blocks) * count)
    assert largest <= compare._BLOCK


def test_a_record_of_millions_of_pictures_draws_some(attacked: Path) -> None:
    """Without scores, one entry was made for each input that the record states."""

    def many(values: dict[str, Any]) -> None:
        for finding in values["findings"]:
            finding["batch"] = 2_000_000_000
            finding["scores"] = None

    out = changed(attacked, many)
    made: Any = gallery.with_pictures(record_file.read(out / "results.json"), out)
    (section,) = made["gallery"]
    assert section["total"] == 2 * 2_000_000_000
    assert main(["report", "out", "-o", "page.html"]) == 0


def test_a_huge_picture_is_not_drawn() -> None:
    assert gallery.image(np.broadcast_to(np.uint8(0), (1, 1, 5_000, 5_000)), 0) is None
    assert gallery.image(np.zeros((1, 1, 0, 4), np.uint8), 0) is None
    assert gallery.image(np.zeros((1, 1, 2, 2), np.uint8), 0) is not None


@pytest.mark.parametrize("array", [np.float32(1), np.zeros((10**6, 3, 2, 2), np.uint8)])
def test_only_some_candidates_are_read(array: np.ndarray, attacked: Path) -> None:
    """A million of them, and a number without dimensions, which ended with TypeError."""

    def chosen(values: dict[str, Any]) -> None:
        for finding in values["findings"]:
            finding["images"]["choices"] = {"0": "choices"}

    out = changed(attacked, chosen)
    record = json.loads((out / "results.json").read_text())
    name = record["findings"][0]["images"]["file"]
    arrays = dict(np.load(out / name))
    np.savez(out / name, **arrays, choices=array)
    made: Any = gallery.with_pictures(record, out)
    (section,) = made["gallery"]
    picture = section["images"][0]
    count = len(array) if array.ndim else 0
    assert picture["candidates"] == count
    assert len(picture["others"]) == min(count, gallery.OTHERS)


def test_only_the_begin_of_a_long_text_is_decoded() -> None:
    assert passages.text_of(np.full(10**7, ord("a"))) == "a" * passages.LONGEST
    assert passages.text_of(np.full(10**7, 256)).startswith("256 256")


def test_tokens_are_text_only_if_the_vocabulary_is_bytes() -> None:
    tokens = np.array([72, 105])
    assert passages.text_of(tokens, 256) == "Hi"
    assert passages.text_of(tokens, 300) == passages.text_of(tokens, 85) == "72 105"


# ---------------------------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------------------------


def test_means_of_the_largest_floats() -> None:
    """`statistics.fmean` ends with OverflowError, and the median of two becomes infinite."""
    large = 1.7e308
    assert averages.mean([large, large]) == averages.median([large, large]) == large
    assert averages.mean([large, large, -large]) == pytest.approx(large / 3)
    assert averages.median([-large, large]) == 0
    for values in ([1.0, 2.0, 4.0], [0.1, 0.2], [5e-324] * 3, [-1.0, math.inf]):
        assert averages.mean(values) == statistics.fmean(values)
        assert averages.median(values) == statistics.median(values)


@pytest.mark.parametrize("number", [1.7e308, -1.7e308, 5e-324])
def test_scores_of_any_size_are_shown(number: float, attacked: Path) -> None:
    def large(values: dict[str, Any]) -> None:
        for finding in values["findings"]:
            for name, column in finding["scores"].items():
                if name in ("psnr", "ssim", "relative_error"):
                    column["per_image"] = [number] * len(column["per_image"])

    changed(attacked, large)
    for form in ("html", "markdown", "csv", "json", "text", "svg"):
        assert main(["report", "out", "-f", form, "-o", f"x.{form}", "-q"]) == 0


@pytest.mark.parametrize("number", [1.7e308, -1.7e308, 5e-324, 1e250, 1e300, 1e-250])
@pytest.mark.parametrize("log", [True, False, None])
def test_axes_of_any_numbers(number: float, log: bool | None) -> None:
    assert plots.is_drawn(number, log=False) == (abs(number) <= 1e250)
    line = plots.PlotLine("a", "rate", [number, 1.0, number], [(number, 1.0), None, (0.5, number)])
    panel = plots.Panel("title", (line,), low=-abs(number), high=abs(number), log=log)
    content = curves.CurveFigure([("", [panel])], {"a": "a"}, {"rate": "value"})
    for figure in curves.draw(content, 174.0, math.inf):
        assert "<svg" in plots.svg(figure, "x")


def test_strips_without_a_measure() -> None:
    assert len(paper_strips.draw(paper_strips.Strips([], []), 174.0, math.inf)) == 1


@pytest.mark.parametrize("row", [-1, 2**31, 10**30])
def test_rows_that_no_array_can_have_are_refused(row: int, attacked: Path) -> None:
    def other(values: dict[str, Any]) -> None:
        values["findings"][0]["scores"]["matched"] = [row]

    out = changed(attacked, other)
    with pytest.raises(LeakauditError, match="expected a whole number from 0 to 2147483647 or nu"):
        record_file.read(out / "results.json")


def test_rows_beyond_the_batch_have_no_picture_and_no_text() -> None:
    assert gallery.image(np.zeros((2, 1, 2, 2), np.uint8), 2) is None
    assert passages._text(np.zeros((2, 3), np.int64), 2) is None


def test_rounds_beyond_all_indices_are_refused(attacked: Path) -> None:
    def many(values: dict[str, Any]) -> None:
        values["trace"]["rounds"] = 2**63

    out = changed(attacked, many)
    with pytest.raises(LeakauditError, match=r"trace.rounds: expected a whole number from 0"):
        record_file.read(out / "results.json")


def test_one_record_with_a_long_number_does_not_hide_the_others(attacked: Path) -> None:
    """msgspec reads whole numbers of 400 digits, with which no float can be computed."""
    Path("runs").mkdir()
    for name in ("good", "bad"):
        changed(attacked, lambda values: None, f"runs/{name}")
    bad = Path("runs/bad/results.json")
    values = json.loads(bad.read_text())
    values["findings"][0]["seconds"] = int("9" * 400)
    bad.write_text(json.dumps(values))
    listing = RunIndex(Path("runs")).listing()
    assert [run.place for run in listing.runs] == ["good"]
    (broken,) = listing.broken
    assert broken.place == "bad"
    assert "beyond all floats" in broken.why
    with pytest.raises(ValueError, match="beyond all floats"):
        from_json(b"9" * 400, int)
    with pytest.raises(ValueError, match="9… is beyond all floats"):
        from_json(b"9" * 400 + b".0", float)
    with pytest.raises(ValueError, match="NaN is not a JSON number"):
        from_json(b"[NaN]", list)
    Path("cells").mkdir()
    Path("cells/a.json").write_text('{"a": ' + "9" * 400 + "}")
    assert running.latest(Path()) == []


@pytest.mark.parametrize("text", ["node:" + "9" * 5_000, "edges:0-" + "9" * 5_000])
def test_an_adversary_at_a_node_of_thousands_of_digits(text: str) -> None:
    with pytest.raises(LeakauditError, match="expected eavesdropper, node:3"):
        Adversary.parse(text)


@pytest.mark.parametrize(
    ("seeds", "samples", "says"),
    [
        ([], [], "expected from 1 to 10000 seeds, got 0"),
        (list(range(10_001)), [0.0] * 10_001, "expected from 1 to 10000 seeds, got 10001"),
        ([0, 1], [0.0], "expected one sample per seed, 2 per measure"),
        ([0, 1], [1.7e308, 1.7e308], r"expected samples up to 1e\+300 in size"),
    ],
)
def test_samples_of_a_baseline(
    seeds: list[int], samples: list[float], says: str, checked: Path
) -> None:
    values = json.loads((checked / "leakage-baseline.json").read_text())
    for cell in values["cells"].values():
        cell["seeds"] = seeds
        cell["samples"] = dict.fromkeys(cell["samples"], samples)
    Path("b.json").write_text(json.dumps(values))
    with pytest.raises(LeakauditError, match=says):
        baseline.read(Path("b.json"))


def test_samples_of_a_run_that_becomes_a_baseline(
    checked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(values: dict[str, Any]) -> None:
        for cell in values["gate"]["cells"]:
            cell["seeds"] = []

    changed(checked / "out", none)
    for name in ("leakaudit.toml", "leakage-baseline.json"):
        Path(name).write_text((checked / name).read_text())
    assert "expected from 1 to 10000 seeds, got 0" in refused(
        capsys, "check", "--diff", "out/results.json"
    )


def test_a_gate_without_cells_is_drawn(checked: Path) -> None:
    def none(values: dict[str, Any]) -> None:
        values["gate"]["cells"] = []

    changed(checked / "out", none)
    assert main(["report", "out", "-f", "svg", "-o", "x.svg", "-q"]) == 0


def test_seeds_for_the_smallest_alpha() -> None:
    """The quotient of comparisons and alpha was infinite."""
    assert compare.seeds_for(5e-324, 1) == 1074
    for alpha, comparisons in ((0.05, 1), (0.05, 7), (0.25, 1), (0.125, 16), (1e-9, 1_000)):
        k = compare.seeds_for(alpha, comparisons)
        assert Fraction(comparisons, 2**k) <= Fraction(alpha) < Fraction(comparisons, 2 ** (k - 1))


def test_any_tolerance_is_compared_silently(recwarn: pytest.WarningsRecorder) -> None:
    with np.errstate(all="ignore"):
        assert compare.paired([1.0] * 3, [0.0] * 3, 1.7e308) == 1
    assert not recwarn.list


@pytest.mark.parametrize("smoothness", ["1.7e308", "1e200", "5e-324"])
def test_smoothness_of_any_size(smoothness: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "dpsgd", "-o", "a.pt", *SMALL, "--set", "sigma=0.1"]) == 0
    assert main(["bound", "a.pt", "--smoothness", smoothness]) in (0, 3)
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("size", ["10^400", "10^-320"])
@pytest.mark.parametrize("where", ["noise", "rounding"])
def test_a_standard_deviation_beyond_all_floats(where: str, size: str) -> None:
    value = f"w[i] + {where}({size})"
    Path("p.toml").write_text(
        f'name = "x"\nstart = "w[i] = w0"\nround = """\nm[i -> neighbours] = {value}\n"""\n'
    )
    victim = registry.configure(protocol_file.load("p.toml"), {})
    with pytest.raises(LeakauditError, match=r"expected 0 or a number from 1e-30 to 1e\+30"):
        victim.relations(Graph(2, ((0, 1),)), 1, {})


@pytest.mark.parametrize("std", [1e300, 1e-300, -1.0, 0.0])
def test_units_of_a_task_at_the_ends_of_all_floats(std: float) -> None:
    assert main(["record", "dpsgd", "-o", "a.pt", *SMALL]) == 0
    tree = torch.load("a.pt", weights_only=True, mmap=False)
    about = json.loads(tree["meta"])
    about["task"] |= {"mean": [0.0], "std": [std]}
    tree["meta"] = json.dumps(about)
    Path("a.pt").write_bytes(mutations.torch_bytes(tree))
    Path("a.pt.sha256").unlink(missing_ok=True)
    with pytest.raises(LeakauditError, match="standard deviation outside 1e-30 to 1e30"):
        trace_file.load(Path("a.pt"))


@pytest.mark.parametrize("value", [0.0, math.nan, 1e300])
def test_rays_of_columns_without_a_finite_energy(value: float) -> None:
    cone = extreme_rays.ConvexCone(np.full((2, 3), value), np.ones(2), np.ones(2), 0.0)
    with np.errstate(all="ignore"):
        assert extreme_rays._direction(cone, [], np.random.default_rng(0)) is None


def test_text_beyond_unicode_is_refused(tmp_path: Path) -> None:
    """numpy reads it, and fails with SystemError when it is used."""
    file = io.BytesIO()
    np.save(file, np.array(["ab", "cd"]))
    raw = file.getvalue()
    raw = raw[:-4] + np.uint32(0x110000).tobytes()
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as out:
        out.writestr("x.npy", mutations.npy(np.zeros((2, 3), np.float32)))
        out.writestr("y.npy", raw)
    with pytest.raises(LeakauditError, match="characters beyond Unicode"):
        data_files.read_npz(tmp_path / "d.npz")
    with npz.Npz(tmp_path / "d.npz") as held, pytest.raises(ValueError, match="beyond Unicode"):
        held["y"]


def test_an_empty_scenario_is_not_the_default_one(capsys: pytest.CaptureFixture[str]) -> None:
    """What a full disk leaves of a file was bounded as ten nodes of PDMM."""
    Path("s.toml").write_text("")
    assert "s.toml is empty" in refused(capsys, "bound", "s.toml")


def test_combinations_of_a_thousand_gradients_are_not_written_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ["--nodes", "4", "--rounds", "1", "--data", "gaussians", "--model", "logistic"]
    steps = ["--set", "local_steps=40", "--set", "sigma=0", "--set", "mask=1"]
    assert main(["record", "secagg", "-o", "x.pt", *args, *steps, "-q"]) == 0
    capsys.readouterr()
    assert main(["trace", "lint", "x.pt"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "g[0|1,1] + g[0|2,1] + g[0|3,1] + ... (40 terms)" in said
    assert "g[0|4,1]" not in said
