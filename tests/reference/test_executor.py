"""The executor: the same values in the same order wherever jobs are computed, and what it refuses."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from executor_jobs import dies, divides, left, raises, slower_first

import leakaudit as la
from leakaudit._util.jobs import REPEATS, WorkerDied
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError, NotDetermined
from leakaudit.core.progress import watching
from leakaudit.runs.workers import shipping
from leakaudit.runs.workers.executor import Executor

PLACES = [Executor(), Executor(1), Executor(3), Executor(2, "loky")]
HALF_ON_DASK = ["--backend", "dask", "--address", "127.0.0.1:1"]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_values_are_in_the_order_of_the_items_and_the_first_error_is_raised(
    place: Executor,
) -> None:
    assert list(place.map(slower_first, range(5))) == [0, 1, 4, 9, 16]
    assert list(place.map(slower_first, [])) == []
    values = place.map(raises, range(5))
    assert [next(values), next(values)] == [0, 1]
    with pytest.raises(NotDetermined, match="number 2") as told:
        next(values)
    assert told.value.understood is False
    with pytest.raises(ZeroDivisionError):
        list(place.map(divides, [1, 0]))


def test_a_job_whose_worker_dies_is_repeated_twice_and_then_told_in_one_line(
    tmp_path: Path,
) -> None:
    survivor, victim = tmp_path / "survivor", tmp_path / "victim"
    orders = [(survivor, REPEATS), (victim, REPEATS + 1)]
    orders += [(tmp_path / f"healthy{k}", 0) for k in range(4)]
    ends = {one.place: one for one in Executor(2).completed(dies, orders)}
    assert len(ends) == len(orders)
    assert ends[0].error is None
    assert isinstance(ends[1].error, WorkerDied)
    assert "signal 9 (SIGKILL)" in str(ends[1].error)
    assert all(ends[k].error is None for k in range(2, 6))
    assert len(victim.read_text().splitlines()) == REPEATS + 1


def test_loky_repeats_what_was_lost(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    orders = [(tmp_path / "once", 1), *((tmp_path / f"healthy{k}", 0) for k in range(3))]
    assert len(list(Executor(2, "loky").map(dies, orders))) == 4
    with pytest.raises(WorkerDied, match="workers died 3 times"):
        list(Executor(2, "loky").map(dies, [(tmp_path / "always", 99)]))


def test_nothing_is_begun_once_the_work_should_stop() -> None:
    for place in PLACES:
        assert list(place.completed(slower_first, range(5), lambda: True)) == []


@pytest.mark.parametrize("place", PLACES[1:], ids=str)
def test_a_worker_has_the_time_that_is_left(place: Executor) -> None:
    assert list(place.map(left, [0])) == [math.inf]
    with watching(seconds=1000):
        (seconds,) = place.map(left, [0])
    assert 0 < seconds <= 1000


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"workers": -1}, "--workers: expected an integer >= 0"),
        ({"backend": "dsak", "address": "h:1"}, "did you mean 'dask'"),
        ({"backend": "loky:dask"}, "--backend: expected process, loky, dask, ray"),
        ({"backend": "dask"}, "--backend dask: expected --address HOST:PORT"),
        ({"address": "h:1"}, "expected it with --backend dask or ray"),
    ],
)
def test_fields_that_fit_nothing_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(LeakauditError, match=says):
        la.Executor(**fields)


@pytest.mark.parametrize(
    ("backend", "address", "says"),
    [
        ("dask", "127.0.0.1:1", "cannot reach 127.0.0.1:1: Connection refused"),
        ("ray", "127.0.0.1:1", "start a cluster with 'ray start --head'"),
        ("dask", "nowhere", "--address: expected HOST:PORT, got 'nowhere'"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(backend: str, address: str, says: str) -> None:
    pytest.importorskip("distributed" if backend == "dask" else backend)
    with pytest.raises(LeakauditError, match=says):
        list(Executor(0, backend, address).map(slower_first, [1]))


@pytest.mark.parametrize("package", ["dask", "ray"])
def test_a_backend_that_is_not_installed_is_one_line(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, {"dask": "distributed"}.get(package, package), None)
    with pytest.raises(LeakauditError, match=rf"pip install 'leakaudit\[{package}\]'"):
        list(Executor(0, package, "127.0.0.1:1").map(slower_first, [1]))


def test_a_worker_with_other_versions_or_without_a_file_says_so(tmp_path: Path) -> None:
    from dataclasses import replace

    item = pickle.dumps(2)
    packed = shipping.pack(slower_first, "dask", math.inf)
    assert shipping.call(packed, 7, item).value == 4
    other = replace(packed, versions=(*packed.versions[:-1], ("scipy", "0.1")))
    assert "has scipy" in str(shipping.call(other, 7, item).error)
    missing = shipping.pack(slower_first, "ray", math.inf, [tmp_path / "trace.pt"])
    told = shipping.call(missing, 7, item)
    assert (told.place, told.value) == (7, None)
    assert isinstance(told.error, LeakauditError)
    assert f"ray workers need to reach {tmp_path / 'trace.pt'}" in str(told.error)


@pytest.mark.parametrize("place", [0, 3_000_000, -1])
def test_a_worker_with_another_copy_of_a_file_says_so(tmp_path: Path, place: int) -> None:
    file = tmp_path / "trace.pt"
    contents = bytearray(4_000_000)
    file.write_bytes(contents)
    packed = shipping.pack(slower_first, "dask", math.inf, [file])
    assert shipping.call(packed, 0, pickle.dumps(2)).value == 4
    contents[place] = 1
    file.write_bytes(contents)
    shipping._unpacked.cache_clear()  # another process, on a machine with another copy
    told = shipping.call(packed, 0, pickle.dumps(2))
    assert f"{file} is another file for the dask worker" in str(told.error)


def test_a_worker_compares_a_recording_that_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    (folder / "shards").mkdir(parents=True)
    (folder / "index.json").write_text("{}")
    (folder / "shards" / "r0.pt").write_bytes(bytes(10))
    packed = shipping.pack(slower_first, "dask", math.inf, [folder])
    assert shipping.call(packed, 0, pickle.dumps(2)).value == 4
    for name, contents in (("index.json", b"[]"), ("shards/r1.pt", b"")):
        (folder / name).write_bytes(contents)
        shipping._unpacked.cache_clear()
        told = shipping.call(packed, 0, pickle.dumps(2))
        assert "is another file for the dask worker" in str(told.error)
        packed = shipping.pack(slower_first, "dask", math.inf, [folder])


SCENARIO = la.Scenario(
    victim="pdmm", nodes=4, graph="ring", rounds=2, data="faces", model="mlp", set={"hidden": 4}
)


@pytest.mark.parametrize("place", PLACES[2:], ids=str)
def test_bounds_and_claims_are_the_same_elsewhere(place: Executor) -> None:
    here = [one.to_json() for one in la.bound(SCENARIO)]
    assert [one.to_json() for one in la.bound(SCENARIO, executor=place)] == here
    who, nodes = ["node:1", "eavesdropper"], [0, 0, 2]
    here = [one.to_json() for one in la.bound(SCENARIO, who, nodes)]
    assert [one.to_json() for one in la.bound(SCENARIO, who, nodes, executor=place)] == here
    rows = [9, 10]
    one = [{**found.to_json(), "seconds": 0} for found in la.claims(rows=rows)]
    two = [{**found.to_json(), "seconds": 0} for found in la.claims(rows=rows, executor=place)]
    assert two == one


def test_all_views_of_a_node_are_one_job_if_there_are_enough_nodes() -> None:
    many = la.Scenario(
        victim="dpsgd", nodes=9, graph="rgg", rounds=2, data="faces", model="mlp", set={"hidden": 4}
    )
    here = [one.to_json() for one in la.bound(many)]
    assert [one.to_json() for one in la.bound(many, executor=la.Executor(2))] == here


def results(folder: Path) -> dict[str, Any]:
    """results.json without when, where and how fast it was made."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    del found["provenance"]
    for one in found["findings"]:
        del one["seconds"]
    return found


@pytest.mark.parametrize("victim", ["dpsgd", "secagg"])
def test_an_attack_is_the_same_elsewhere_also_if_a_group_covers_nodes_of_another(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leakaudit.runs.pipeline import node_groups

    monkeypatch.setattr(node_groups, "TOGETHER", 2)
    trace = str(tmp_path / "t.pt")
    words = ["--nodes", "5", "--rounds", "2", "--graph", "complete", "--set", "hidden=8"]
    assert main(["record", victim, *words, "-o", trace, "-q"]) == 0
    codes = []
    for name, more in (("here", []), ("there", ["--workers", "2"])):
        out = ["attack", trace, "--attack", "labels", "-o", str(tmp_path / name), "-q", *more]
        codes.append(main(out))
    assert codes[0] == codes[1]
    assert results(tmp_path / "there") == results(tmp_path / "here")
    arrays = "reconstructions.npz"
    assert (tmp_path / "there" / arrays).read_bytes() == (tmp_path / "here" / arrays).read_bytes()
    if victim == "secagg":
        (finding,) = results(tmp_path / "here")["findings"]
        assert len(finding["others"]) == 4


def test_an_attack_without_time_leaves_all_nodes_for_later(tmp_path: Path) -> None:
    trace = str(tmp_path / "t.pt")
    assert main(["record", "dpsgd", "--nodes", "4", "--rounds", "2", "-o", trace, "-q"]) == 0
    words = ["attack", trace, "-o", str(tmp_path / "out"), "-q", "--workers", "2"]
    main([*words, "--max-seconds", "0.000001"])
    assert not results(tmp_path / "out")["complete"]
    assert main([*words, "--resume"]) == 0
    assert results(tmp_path / "out")["complete"]


AUDIT = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "faces"
model = "mlp"

[scenario.set]
hidden = 8

[audit]
attacks = ["analytic"]
adversaries = ["eavesdropper"]
epsilon = [inf, 8]
constant = "sigma"
seeds = 2
nodes = [0]
replays = 26
candidates = 3
canary = 10
one_run = true
"""


def test_an_audit_is_the_same_elsewhere(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(AUDIT)
    for name, more in (("here", []), ("there", ["--workers", "2"])):
        assert main(["audit", str(plan), "-o", str(tmp_path / name), "-q", *more]) == 0
    assert results(tmp_path / "there") == results(tmp_path / "here")


@pytest.mark.parametrize("verb", ["sweep", "audit", "attack", "bound", "reproduce"])
def test_every_verb_refuses_a_cluster_that_is_not_there(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    plan = tmp_path / "plan.toml"
    sweep = '[sweep]\nattacks = ["labels"]\nseeds = 2\n'
    plan.write_text(AUDIT.replace("one_run = true", "one_run = false") + sweep)
    if verb == "sweep":
        plan.write_text(AUDIT.partition("[audit]")[0] + sweep)
    elif verb == "audit":
        plan.write_text(AUDIT)
    trace = str(tmp_path / "t.pt")
    words = {"sweep": [str(plan)], "audit": [str(plan)], "attack": [trace], "bound": [trace]}
    words["reproduce"] = ["--claims", "--row", "9"]
    if verb in ("attack", "bound"):
        assert main(["record", "dpsgd", "--nodes", "3", "--rounds", "1", "-o", trace, "-q"]) == 0
    out = [] if verb in ("bound", "reproduce") else ["-o", str(tmp_path / "out")]
    capsys.readouterr()
    assert main([verb, *words[verb], *out, *HALF_ON_DASK, "-q"]) == 2
    told = capsys.readouterr().err
    assert "backend dask: cannot reach 127.0.0.1:1: Connection refused" in told
    assert told.count("\n") == 1
    assert main([verb, *words[verb], *out, "--backend", "dsak", "-q"]) == 2
    assert "did you mean 'dask'" in capsys.readouterr().err
