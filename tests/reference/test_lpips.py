"""LPIPS against published numbers, and weights that must not load."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from leakaudit._util.files import write_arrays
from leakaudit.core.errors import LeakauditError
from leakaudit.scoring import lpips_weights
from leakaudit.scoring.lpips_weights import SIDES, Weights, blank, find, read
from leakaudit.scoring.metrics import lpips_distance

Shared = Callable[[str], Path]


def picture(path: Path) -> Tensor:
    return (
        torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)[None].float()
        / 255
    )


def random_file(net: str, path: Path, leave_out: str = "", value: float | None = None) -> Path:
    """An npz with every key of a network, without its knowledge."""
    state = {
        lpips_weights._canonical(k): v
        for k, v in blank(net).state_dict().items()
        if not k.startswith("scaling_layer.")
    }
    generator = torch.Generator().manual_seed(0)
    arrays = {
        k: torch.rand(v.shape, generator=generator).numpy() * 0.1
        for k, v in state.items()
        if k != leave_out
    }
    if value is not None:
        arrays["lin.0"][...] = value
    with path.open("wb") as file:
        write_arrays(file, arrays)
    return path


def test_squeeze_gives_the_number_of_the_torchmetrics_docstring(shared_data: Shared) -> None:
    weights = read(shared_data("lpips/lpips_squeeze_v0.1.npz"))
    generator = torch.Generator().manual_seed(42)
    a, b = (torch.rand(2, 3, 100, 100, generator=generator) for _ in range(2))
    assert lpips_distance(a, b, weights, data_range=1.0).tolist() == pytest.approx(
        [0.1024, 0.0938], abs=5e-5
    )
    assert lpips_distance(255 * a, 255 * b, weights, data_range=255.0).tolist() == pytest.approx(
        [0.1024, 0.0938], abs=5e-5
    )
    assert lpips_distance(a, a, weights, data_range=1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("net", "wanted"), [("alex", (0.722, 0.138)), ("squeeze", (0.7110, 0.1479))]
)
def test_the_authors_example_pictures_get_the_published_distances(
    shared_data: Shared, net: str, wanted: tuple[float, float]
) -> None:
    weights = read(shared_data(f"lpips/lpips_{net}_v0.1.npz"))
    reference = picture(shared_data("lpips/ex_ref.png"))
    found = [
        lpips_distance(
            picture(shared_data(f"lpips/ex_p{i}.png")), reference, weights, data_range=1.0
        ).item()
        for i in (0, 1)
    ]
    assert found == pytest.approx(wanted, abs=5e-4)


def test_the_file_is_named_with_its_sha256(shared_data: Shared) -> None:
    path = shared_data("lpips/lpips_squeeze_v0.1.npz")
    weights, said = find(str(path), (1, 28, 28))
    assert isinstance(weights, Weights)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in said


def test_gray_counts_as_three_equal_channels_and_batches_do_not_mix(tmp_path: Path) -> None:
    weights = read(random_file("squeeze", tmp_path / "w.npz"))
    x, y = torch.rand(2, 20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    gray = lpips_distance(x, y, weights, data_range=1.0)
    assert torch.equal(
        gray,
        lpips_distance(x.expand(-1, 3, -1, -1), y.expand(-1, 3, -1, -1), weights, data_range=1.0),
    )
    assert gray[17].item() == pytest.approx(
        lpips_distance(x[17:18], y[17:18], weights, data_range=1.0).item(), rel=1e-5
    )


@pytest.mark.parametrize("net", sorted(SIDES))
def test_the_smallest_side_is_the_smallest_that_works(tmp_path: Path, net: str) -> None:
    weights = read(random_file(net, tmp_path / "w.npz"))
    x = torch.rand(1, 1, SIDES[net], SIDES[net], generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(lpips_distance(x, 1 - x, weights, data_range=1.0)).all()
    with pytest.raises(RuntimeError):
        weights.module(*torch.zeros(2, 1, 3, SIDES[net] - 1, SIDES[net] - 1))
    with pytest.raises(LeakauditError, match=f"sides of at least {SIDES[net]}"):
        lpips_distance(x[..., 1:], x[..., 1:], weights, data_range=1.0)


def test_images_too_small_for_the_network_are_not_measured_and_the_reason_is_said(
    tmp_path: Path,
) -> None:
    file = str(random_file("alex", tmp_path / "w.npz"))
    assert find(file, (1, 28, 28)) == (None, "not measured (alex needs sides of at least 31 px)")
    assert find(file, (1, 31, 31))[0] is not None
    assert find(file, (22,)) == (None, "not measured (no images with 1 or 3 channels)")
    assert find("off") == (None, "not measured (switched off)")


def test_auto_uses_only_what_torch_has_cached_and_checks_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert find("auto", (3, 64, 64)) == (None, "not measured (no weights)")
    trunk = {k: v for k, v in blank("squeeze").state_dict().items() if k.startswith("net.")}
    classifier = {
        "features." + k.split(".", 2)[2]: torch.zeros(v.shape) for k, v in trunk.items()
    } | {"classifier.1.bias": torch.zeros(3)}
    cached = tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    cached.parent.mkdir()
    torch.save(classifier, cached)
    with pytest.raises(LeakauditError, match="begins with b8a52dc0"):
        find("auto", (3, 64, 64))
    assert find("auto", (3, 16, 16)) == (
        None,
        "not measured (squeeze needs sides of at least 17 px)",
    )
    assert read(cached).net == "squeeze"


def test_a_whole_module_saved_by_lpips_gives_the_same_distances(tmp_path: Path) -> None:
    weights = read(random_file("squeeze", tmp_path / "w.npz"))
    torch.save(weights.module.state_dict(), tmp_path / "w.pth")
    x, y = torch.rand(2, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    again = lpips_distance(x, y, read(tmp_path / "w.pth"), data_range=1.0)
    assert torch.equal(again, lpips_distance(x, y, weights, data_range=1.0))


def test_a_missing_key_a_wrong_shape_or_nan_loads_nothing(tmp_path: Path) -> None:
    with pytest.raises(LeakauditError, match="exactly the keys"):
        read(random_file("squeeze", tmp_path / "a.npz", leave_out="net.4.squeeze.bias"))
    with pytest.raises(LeakauditError, match="exactly the keys"):
        read(random_file("squeeze", tmp_path / "b.npz", leave_out="lin.3"))
    with pytest.raises(LeakauditError, match=r"lin\.0: expected .* finite"):
        read(random_file("squeeze", tmp_path / "c.npz", value=float("nan")))
    arrays = dict(np.load(random_file("squeeze", tmp_path / "d.npz"), allow_pickle=False))
    wrong = {**arrays, "net.0.weight": np.zeros((64, 3, 3, 4), np.float32)}
    with (tmp_path / "e.npz").open("wb") as file:
        write_arrays(file, wrong)
    with pytest.raises(LeakauditError, match=r"net\.0\.weight: expected \(64, 3, 3, 3\)"):
        read(tmp_path / "e.npz")


@pytest.mark.parametrize(
    "name",
    ["heads.pth", "list.pth", "text.npz", "text.pth", "empty.npz", "absent.npz", "pickle.pth"],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "heads.pth":
        torch.save({"lin0.model.1.weight": torch.zeros(1, 64, 1, 1)}, path)
    elif name == "list.pth":
        torch.save([torch.zeros(1)], path)
    elif name == "pickle.pth":
        torch.save({"net.0.weight": Path("x")}, path)
    elif name != "absent.npz":
        path.write_text("" if name == "empty.npz" else "these are no weights")
    with pytest.raises(LeakauditError) as caught:
        find(str(path), (3, 64, 64))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    file = random_file("alex", tmp_path / "w.npz")
    before = torch.random.get_rng_state()
    read(file)
    assert torch.equal(before, torch.random.get_rng_state())


def test_other_files_are_refused_without_torchvision(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(2)}, tmp_path / "other.pth")
    program = (
        "import sys; from pathlib import Path\n"
        "from leakaudit.core.errors import LeakauditError\n"
        "from leakaudit.scoring import lpips_weights\n"
        "try:\n"
        "    lpips_weights.read(Path(sys.argv[1]))\n"
        "except LeakauditError as error:\n"
        "    assert 'layer.weight' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('it was read')\n"
        "assert 'torchvision' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "other.pth")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
