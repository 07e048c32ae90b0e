"""Run short forms of all benchmarks and print a table of ratios; `make bench` runs this.

python bench/_all.py [-o FILE] [--seconds 1500] [--only NAME …] [--breaching PYTHON]

Each benchmark runs in its own process and prints JSON lines; FILE receives all of them, with a
description of the machine. A ratio compares two quantities measured side by side in one run. A
benchmark that exceeds its share of the time is ended, and its lines so far are kept. A figure that
is worse by more than a quarter than the last record in bench/history.json on such a machine (the
same processors, Python and torch) is marked in the table and named at the end. The exit code is 1
if a benchmark fails with an error; neither a missed target nor a worse figure changes it, since
other programs on the machine can cause both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import _history

HERE = Path(__file__).resolve().parent
LEAST, MOST = "at least", "at most"
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One figure of the table. target: None if there is none; side: whether it is a minimum or a
    maximum.
    """

    name: str
    ratio: float | None
    unit: str
    target: float | None = None
    side: str = LEAST

    @property
    def met(self) -> str:
        """Whether the target is met, as a word for the table."""
        if self.target is None or self.ratio is None:
            return ""
        fits = self.ratio >= self.target if self.side == LEAST else self.ratio <= self.target
        return "met" if fits else "missed"


def plain(lines: Sequence[Line]) -> list[Row]:
    """Rows of lines that have a ratio and, possibly, a target."""
    return [_row(line) for line in lines if "bench" in line and "ratio" in line]


def tap(lines: Sequence[Line]) -> list[Row]:
    """CPU time of a tapped program relative to the same program without the tap."""
    unit = "times the CPU time of a round without the tap"
    return [
        Row(f"tap/{line['program']}", line["ratio_cpu"], unit, line["target"], MOST)
        for line in lines
        if "ratio_cpu" in line
    ]


def layers(lines: Sequence[Line]) -> list[Row]:
    """CPU time of a run of which some layers are recorded relative to one that is not recorded."""
    return [Row(r.name, r.ratio, r.unit, r.target, MOST) for r in plain(lines)]


def victims(lines: Sequence[Line]) -> list[Row]:
    """Speed relative to the loop (minimum), and cost relative to the floor and to fewer nodes
    (maximum).
    """
    return [
        r if r.unit.startswith("times faster") else Row(r.name, r.ratio, r.unit, r.target, MOST)
        for r in plain(lines)
    ]


def attacks(lines: Sequence[Line]) -> list[Row]:
    """Pictures per second, attempts if the published loop recovers no picture, and memory relative
    to its limit.
    """
    rows = []
    for line in lines:
        if "gb" in line:
            rows.append(
                Row(
                    str(line["bench"]),
                    round(line["gb"] / line["target"], 2),
                    f"of {line['target']} GiB",
                    1,
                    MOST,
                )
            )
        elif "ratio_of_attempts" in line:
            rows.append(
                _row(line)
                if line["ratio"] is not None
                else Row(line["bench"], None, "the published loop recovered no picture")
            )
            rows.append(
                Row(
                    f"{line['bench']}, attempts",
                    line["ratio_of_attempts"],
                    "times the attempts in a CPU second",
                )
            )
    return rows


def exact(lines: Sequence[Line]) -> list[Row]:
    """Fraction of images, and the time of the largest batch relative to the smallest."""
    rows, times = plain(lines), [line["cpu_median"] for line in lines]
    batches = [int(str(line["bench"]).rsplit("-", 1)[1]) for line in lines]
    if len(times) > 1:
        unit = f"times the CPU seconds, {batches[-1] // batches[0]} times the images"
        rows.append(
            Row(
                f"exact/batch {batches[-1]} over {batches[0]}",
                round(times[-1] / times[0], 2),
                unit,
                batches[-1] / batches[0],
                MOST,
            )
        )
    return rows


def inverting(lines: Sequence[Line]) -> list[Row]:
    """CPU seconds of the published recipe relative to ours, to the same loss; 0 if ours is
    higher.
    """
    said = [line for line in lines if "times_faster" in line]
    unit = "times faster than {}, to a loss as low"
    return [
        Row(
            f"inverting/{s['to']}",
            s["times_faster"] or 0.0,
            unit.format(s["to"]),
            float(s["target"]),
            LEAST,
        )
        for s in said
    ]


def relations(lines: Sequence[Line]) -> list[Row]:
    """CPU seconds of dense algebra relative to the engine, on the same problems, and the difference
    of their results.
    """
    by = [(line["what"], line.get("rounds"), line.get("cpu")) for line in lines]

    def cpu(words: str, rounds: int | None = None) -> float | None:
        return next(
            (
                c
                for what, r, c in by
                if what.startswith(words) and c and (rounds is None or r == rounds)
            ),
            None,
        )

    pairs = (
        (
            "relations/window of a node",
            cpu("the same window of one node, dense"),
            cpu("weights of all 100 nodes"),
            100,
        ),
        ("relations/mu of 300 rounds", cpu("the same, dense"), cpu("DP-Norm mu", 300), 1),
    )
    rows = [
        Row(n, round(dense / ours * k, 2), "times faster than dense algebra")
        for n, dense, ours, k in pairs
        if dense and ours
    ]
    same = [line["ratio"] for line in lines if "ratio" in line]
    return [
        *rows,
        Row(
            "relations/results",
            max((abs(r - 1) for r in same), default=None),
            "apart from dense and closed forms",
            1e-9,
            MOST,
        ),
    ]


def startup(lines: Sequence[Line]) -> list[Row]:
    """CPU time of commands relative to their limits."""
    return [Row(r.name, r.ratio, r.unit, r.target, MOST) for r in plain(lines)]


def growth(lines: Sequence[Line]) -> list[Row]:
    """Exponents, with the sizes that a minute, an hour and 8 GB reach; times at the largest size."""
    rows = []
    for line in lines:
        reached = [
            f"{what} at {line[key]:,.3g} {line['size']}"
            for key, what in (("minute", "a minute"), ("hour", "an hour"), ("8 GB", "8 GB"))
            if line[key] is not None
        ]
        words = ", ".join([f"{line['low']:.2f} to {line['high']:.2f}", *reached])
        rows.append(Row(line["bench"], line["exponent"], f"exponent of the CPU time; {words}"))
        largest = f"{line['bench']}, {line['sizes'][-1]:,}"
        rows.append(Row(largest, line["work"], "times a fixed piece of work", None, MOST))
    return rows


def _row(line: Line) -> Row:
    return Row(str(line["bench"]), line["ratio"], str(line.get("unit", "")), line.get("target"))


@dataclass(frozen=True)
class Bench:
    """One script in its short form. seconds: the time limit."""

    name: str
    words: tuple[str, ...]
    seconds: int
    rows: Callable[[Sequence[Line]], list[Row]] = plain


SUITE = (
    Bench("relations", ("values", "mu"), 60, relations),
    Bench("exact", ("--dtype", "float64", "--seeds", "1"), 60, exact),
    Bench("recorder", ("--megabytes", "128", "--repetitions", "5"), 60),
    Bench("layers", ("--rounds", "3", "--repetitions", "2"), 120, layers),
    Bench("tap", (), 120, tap),
    Bench("sweep", (), 240),
    Bench("inverting", ("--speed", "--pictures", "8", "--steps", "600"), 120, inverting),
    Bench("victims", ("pdmm", "dpsgd", "dpnorm", "fedavg", "secured"), 240, victims),
    Bench("gpu", (), 120),
    Bench("growth", ("--runs", "1"), 420, growth),
    Bench("startup", ("--runs", "3"), 240, startup),
    Bench("attacks", (), 900, attacks),  # last: it uses the remaining time
)
LEFT_OUT = {
    "record_level.py": "it compares bounds with attained values, not times",
    "certificates.py": "it counts how often EXACT is wrong, in an hour; it compares no times",
    "cone.py": "it counts images that come back, in ten minutes; it compares no times",
    "lora.py": "it counts images that come back, in ten minutes; it compares no times",
    "implicit.py": "it compares two derivatives, of which one is right only in the end",
    "dager.py": "it needs a checkout of DAGER and an environment of its own: sh bench/_dager.sh",
    "spear.py": "it counts images that come back, in ten minutes; it compares no times",
    "equations.py": "it counts protocols that are named, in an hour; it compares no times",
    "sweep_parts.py": "it compares the bytes of 10,000 cells, in ten minutes; it compares no times",
    "vit.py": "it counts images that come back; it compares no times",
    "verbs.py": "it compares two installations, but a checkout contains one",
    "bounds.py": "it measures growth, and compares with the same bounds one by one",
    "view.py": "it compares with limits of time and memory, not with a peer",
    "deduce.py": "it measures growth and memory of reading traces, and compares with no peer",
    "gate.py": "it counts how often a gate is right, in ten minutes; it compares no times",
    "large.py": "it compares with limits of time, memory and disk, in half an hour",
    "load.py": "it measures growth and memory of large inputs, in half an hour",
    "compress.py": "it compares sizes, not times",
    "workers.py": "one and two workers need two free processors, for ten minutes",
}


def main() -> int:
    """Run the suite and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file for all lines")
    parser.add_argument(
        "--seconds", type=float, default=1500.0, help="time limit for all benchmarks together"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[b.name for b in SUITE], default=[b.name for b in SUITE]
    )
    parser.add_argument(
        "--breaching",
        metavar="PYTHON",
        help="the Python of bench/_breaching.sh: adds a comparison with breaching",
    )
    asked = parser.parse_args()
    suite = [b for b in SUITE if b.name in asked.only]
    if asked.breaching:
        suite.append(Bench("_breaching", ("--python", asked.breaching), 300))
    end, rows, told = time.monotonic() + asked.seconds, list[Row](), list[dict[str, Any]]()
    about = machine()
    history = _history.read()
    for bench in suite:
        limit = min(bench.seconds, end - time.monotonic())
        lines, how, took = (
            run(bench, limit) if limit > 1 else ([], "not run: no time was left", 0.0)
        )
        made = bench.rows(lines) if lines else []
        told.append(
            {
                "bench": bench.name,
                "words": list(bench.words),
                "how": how,
                "seconds": round(took, 1),
                "lines": lines,
            }
        )
        rows += made
        worse = _worse(made, about, history)
        sys.stderr.write(f"{bench.name}: {how}, {took:.0f} s\n")
        shown = table(made, worse) if made else [how]
        sys.stdout.write("".join(f"  {text}\n" for text in shown))
        sys.stdout.flush()
    missed = sum(r.met == "missed" for r in rows)
    print(f"{len(rows)} figures, {missed} targets missed; {about['words']}")
    worse = _worse(rows, about, history)
    print(f"{len(worse)} figures are worse by more than a quarter than the last record")
    for name, says in worse.items():
        print(f"worse: {name}: {says}")
    for name, why in LEFT_OUT.items():
        print(f"omitted: {name}: {why}")
    if asked.output:
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "machine": about,
            "rows": [{**asdict(r), "met": r.met} for r in rows],
            "benches": told,
            "left_out": LEFT_OUT,
        }
        asked.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(t["how"].startswith("failed") for t in told))


def _worse(
    rows: Sequence[Row], about: Mapping[str, Any], history: list[dict[str, Any]]
) -> dict[str, str]:
    """Return by name how figures are worse than the last record on such a machine."""
    result = {"machine": about, "rows": [asdict(row) for row in rows]}
    return dict(_history.worse(_history.entry(result, ""), history))


def run(bench: Bench, limit: float) -> tuple[list[dict[str, Any]], str, float]:
    """Run one script; return its lines, how it ended and its duration in seconds."""
    command, start = (
        [sys.executable, str(HERE / f"{bench.name}.py"), *bench.words],
        time.monotonic(),
    )
    more: dict[str, Any] = {
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
        "start_new_session": True,
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more) as process:
        try:
            out, _ = process.communicate(timeout=limit)
            how = "done" if process.returncode == 0 else f"failed with code {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # and its children
            out, _ = process.communicate()
            how = f"ended after {limit:.0f} s, before it was done"
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    return parsed(out.splitlines()), how, time.monotonic() - start


def parsed(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the JSON objects among the lines."""
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        found += [value] if isinstance(value, dict) else []
    return found


def table(rows: Sequence[Row], worse: Mapping[str, str]) -> list[str]:
    """Format one line per row; `worse` describes rows that are worse than before, by name."""
    wide = max(len(r.name) for r in rows)
    out = []
    for r in rows:
        target = "" if r.target is None else f"{r.side} {r.target:g}"
        ratio = "-" if r.ratio is None else f"{r.ratio:.3g}"
        unit = r.unit if r.name not in worse else f"{r.unit} (WORSE: {worse[r.name]})"
        out.append(f"{r.name:{wide}}  {ratio:>8}  {target:14} {r.met:6}  {unit}".rstrip())
    return out


def machine() -> dict[str, Any]:
    """Describe the machine and the time, in words and numbers."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    words = f"{cores} processors ({model}), load {load:.1f} at the start, Python {platform.python_version()}"
    return {
        "words": words,
        "cores": cores,
        "model": model,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": version("torch"),
        "load": round(load, 2),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    raise SystemExit(main())
