"""No string of ours is parsed for its meaning: what is data stays typed, and sentences are made where they are shown.

An AST walk finds every call that takes text apart. Each must have a line in `READS`, with what it reads: text of a
user, of another program, or of a file format. A line that is no longer needed fails, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("leakaudit", "attacks", "victims", "reports")
METHODS = {
    "endswith",
    "partition",
    "removeprefix",
    "removesuffix",
    "rpartition",
    "rsplit",
    "splitlines",
    "startswith",
}

TYPED = "what a user typed"
NAMED = "a file's name"
MODULE = "the name of a module or of its function"
FOREIGN = "a file of another program"
FORMAT = "the notation of our own file format, checked before it is read"
ERROR = "the message of another library, shortened to one line"
TORCH = "PyTorch's own names of dtypes, parameters or calls"
FLOWER = "Flower's own names of kinds of messages"
SHOWN = "text that is about to be printed: white space, markup or the form of a number"
SVG = "a drawing of matplotlib"
STORED = "checks that a stored text has its form, and takes nothing from it"

EXPORTED = "the notation of torch.export: paths of modules, names of operators and of entries"

READS = {
    "attacks/__init__.py": MODULE,
    "leakaudit/protocols/running_statistics.py:of_layers": "names of parameters",
    "leakaudit/views/extraction/batch_statistics.py": "names of public tensors in a trace file",
    "leakaudit/runs/clusters/cluster.py:broken": ERROR,
    "leakaudit/runs/clusters/cluster.py:unreachable": ERROR,
    "leakaudit/runs/clusters/joblib_pool.py:run": ERROR,
    "leakaudit/runs/clusters/cluster.py:reachable": TYPED,
    "leakaudit/runs/workers/executor.py:Executor.__post_init__": TYPED,
    "leakaudit/runs/workers/executor.py:Executor.completed": TYPED,
    "leakaudit/_util/config.py:_key": "a key as TOML writes it",
    "leakaudit/_util/config.py:inline": "a value as TOML writes it",
    "leakaudit/_util/config.py:line_of": "TOML that a user wrote, for the number of a line",
    "leakaudit/_util/declarations.py:_first_line": "the first line of a docstring",
    "leakaudit/_util/decoding.py:_fits": STORED,
    "leakaudit/_util/files.py": NAMED,
    "leakaudit/_util/marks.py:found": "the form of a file, and the mark at its end",
    "leakaudit/_util/untrusted/npz.py:Npz.__init__": NAMED,
    "leakaudit/_util/own_code.py:defined_in": MODULE,
    "leakaudit/judging/papers/items.py:_named": TYPED,
    "leakaudit/judging/papers/items.py:_order": "the numbers in the name of an item",
    "leakaudit/reporting/results/model.py:trained_of": "names of curves, as victims record them",
    "leakaudit/runs/reproducing/page.py:_lines": "the name of a line, for the name of its file",
    "leakaudit/judging/gate/untrusted.py:_environment": "the name of an environment variable",
    "leakaudit/judging/gate/untrusted.py:_relay": "lines of the isolated process",
    "leakaudit/runs/pipeline/purge.py:_is_image": "the form of a file",
    "leakaudit/runs/pipeline/purge.py:_tensors": NAMED,
    "leakaudit/runs/pipeline/purge.py:_what": "the form of a file",
    "leakaudit/_util/separated.py": SHOWN,
    "leakaudit/_util/separated.py:inert": SHOWN,
    "leakaudit/traces/vocabulary.py:Vocabulary.__init__": TYPED,
    "leakaudit/_util/earlier_names.py:_Finder.find_spec": MODULE,
    "leakaudit/_util/earlier_names.py:_Loader.exec_module": MODULE,
    "leakaudit/core/adversary.py:Adversary.parse": TYPED,
    "leakaudit/cli/_options.py:half_of_free": "what Linux states about its memory",
    "leakaudit/capture/tap/log/finder.py:Finder.save": ERROR,
    "leakaudit/capture/tap/log/exporting.py:_is_framework": MODULE,
    "leakaudit/capture/tap/log/exporting.py:_rebuilt": TORCH,
    "leakaudit/capture/tap/log/exporting.py:own_class": MODULE,
    "leakaudit/capture/tap/saved.py:take": TYPED,
    "leakaudit/core/errors.py": SHOWN,
    "leakaudit/core/errors.py:one_line": SHOWN,
    "leakaudit/judging/lint/checks.py:Lint.unexamined": STORED,
    "leakaudit/views/conformance/conformance.py:check": STORED,
    "leakaudit/inversion/exact/decoders.py:_candidates": TORCH,
    "leakaudit/inversion/exact/decoders.py:_gpt2": TORCH,
    "leakaudit/inversion/exact/decoders.py:_merged": TORCH,
    "leakaudit/inversion/exact/decoders.py:_renamed": TORCH,
    "leakaudit/inversion/exact/decoders.py:reading": TORCH,
    "leakaudit/tasks/adapters.py:built": MODULE,
    "leakaudit/tasks/exported/archive.py:_records": EXPORTED,
    "leakaudit/tasks/exported/archive.py:read": ERROR,
    "leakaudit/tasks/exported/operators.py": EXPORTED,
    "leakaudit/tasks/exported/operators.py:base": EXPORTED,
    "leakaudit/tasks/exported/operators.py:function": EXPORTED,
    "leakaudit/tasks/exported/operators.py:in_place": EXPORTED,
    "leakaudit/tasks/exported/program.py": EXPORTED,
    "leakaudit/tasks/exported/program.py:ExportedProgram._build": EXPORTED,
    "leakaudit/tasks/exported/program.py:ExportedProgram._run": EXPORTED,
    "leakaudit/tasks/exported/program.py:_module": EXPORTED,
    "leakaudit/tasks/exported/program.py:_own_layers": EXPORTED,
    "leakaudit/core/trace.py:TaskSpec.is_program": NAMED,
    "leakaudit/capture/equations/written.py": FORMAT,
    "leakaudit/cli/equations.py:run": NAMED,
    "leakaudit/capture/gloo/engine.py:_said": "the stderr of a child process",
    "leakaudit/capture/gloo/faults.py": TYPED,
    "leakaudit/capture/gloo/merge.py:exit_codes": FORMAT,
    "leakaudit/capture/gloo/merge.py:last_word": NAMED,
    "leakaudit/capture/gloo/process.py:failed": ERROR,
    "leakaudit/capture/tap/guessing/draft.py:_Draft._line": "a key of our own description",
    "leakaudit/capture/tap/guessing/draft.py:_Draft.put": "a key of our own description",
    "leakaudit/capture/tap/messages/description.py:read": TYPED,
    "leakaudit/capture/tap/messages/description.py:_check_protocol": TYPED,
    "leakaudit/capture/tap/messages/description.py:MessageDescription.undeclared": TYPED,
    "leakaudit/capture/tap/hooks/ddp.py:listen.forwarding": ERROR,
    "leakaudit/capture/tap/log/reading.py:_first": FORMAT,
    "leakaudit/capture/tap/log/reading.py:parse": FORMAT,
    "leakaudit/capture/tap/flower/hooks.py:listen": MODULE,
    "leakaudit/capture/tap/flower/messages.py:kind_of": FLOWER,
    "leakaudit/capture/tap/launch.py:_is_open": FORMAT,
    "leakaudit/capture/tap/log/layers.py:module": TORCH,
    "leakaudit/capture/tap/merge.py": TORCH,
    "leakaudit/capture/tap/nvflare/filters.py:RecordMessages._rank": "a number in a client's name",
    "leakaudit/capture/tap/nvflare/tasks.py:listen": MODULE,
    "leakaudit/capture/tap/messages/layouts.py:split": TYPED,
    "leakaudit/capture/tap/log/writing.py:_form": TORCH,
    "leakaudit/capture/tap/log/reading.py": NAMED,
    "leakaudit/capture/tap/messages/states.py:_bare": TORCH,
    "leakaudit/capture/tap/messages/states.py:_is_named_buffer": TORCH,
    "leakaudit/capture/wire/folder.py": NAMED,
    "leakaudit/capture/wire/folder.py:_lines": FORMAT,
    "leakaudit/capture/wire/folder.py:_read": FORMAT,
    "leakaudit/capture/wire/payloads.py:_first_line": ERROR,
    "leakaudit/cli/_main.py:_renamed": TYPED,
    "leakaudit/cli/_main.py:main": SHOWN,
    "leakaudit/core/errors.py:_plain": TYPED,
    "leakaudit/reporting/rendering/gate_text.py:_shifted": SHOWN,
    "leakaudit/cli/_parser.py:Parser._own_words": TYPED,
    "leakaudit/cli/_parser.py:Parser._reject_unknown": TYPED,
    "leakaudit/cli/_parser.py:_Help._fill_text": SHOWN,
    "leakaudit/cli/_commands.py:Command.add": "our own name of a command",
    "leakaudit/cli/_commands.py:_add": "the flags of an option",
    "leakaudit/cli/_commands.py:_add_settings": "the name of an option, for its placeholder",
    "leakaudit/cli/_options.py:settings": ERROR,
    "leakaudit/cli/check.py:_format": TYPED,
    "leakaudit/cli/completion.py:_describe": "our own placeholder of an argument",
    "leakaudit/cli/curves.py:run": NAMED,
    "leakaudit/cli/doctor.py:_libraries": ERROR,
    "leakaudit/cli/explain.py:_shortened": SHOWN,
    "leakaudit/cli/list.py:_plain": SHOWN,
    "leakaudit/cli/list.py:short": "a reference, which a table shortens to authors and year",
    "leakaudit/cli/_options.py:ListenerOptions.parse": TYPED,
    "leakaudit/cli/_options.py:window": TYPED,
    "leakaudit/cli/record.py:pairs": TYPED,
    "leakaudit/cli/record.py:run": TYPED,
    "leakaudit/cli/sweep.py:_shard": TYPED,
    "leakaudit/cli/tap.py:_layers": TYPED,
    "leakaudit/cli/tapped.py:log": NAMED,
    "leakaudit/cli/_options.py:numbers": TYPED,
    "leakaudit/capture/gradient.py:unwrapped": "names of parameters in a file",
    "leakaudit/cli/tapped.py:unclear": STORED,
    "leakaudit/cli/trace.py:convert": TYPED,
    "leakaudit/judging/gate/config.py:Check._check_program": TYPED,
    "leakaudit/protocols/declared.py:constants": FORMAT,
    "leakaudit/views/messages.py:_coarse": TORCH,
    "leakaudit/judging/gate/judge.py:_is_own": MODULE,
    "leakaudit/views/conformance/recordings.py": (
        "texts that a program wrote in its description, for the number of their digits"
    ),
    "leakaudit/judging/gate/program.py:_library": NAMED,
    "leakaudit/judging/gate/program.py:_outcome": ERROR,
    "leakaudit/judging/gate/program.py:imported": TYPED,
    "leakaudit/inversion/exact/slopes.py:_outputs": TORCH,
    "leakaudit/inversion/search/feature_inversion.py:features": TORCH,
    "leakaudit/judging/lint/wire.py:_coarse": TORCH,
    "leakaudit/runs/pipeline/rescoring.py:_own_note": "takes off the remark that it computes from the scores itself",
    "leakaudit/protocols/equations/file.py": "names that a user wrote in a protocol file",
    "leakaudit/protocols/equations/file.py:_equations": "TOML that a user wrote, for the number of a line",
    "leakaudit/protocols/equations/parse.py:_Parser.number": "a number of an equation that a user wrote",
    "leakaudit/protocols/equations/scan.py": "equations that a user wrote",
    "leakaudit/protocols/equations/scan.py:_sentence": "equations that a user wrote",
    "leakaudit/protocols/equations/scan.py:sentences": "equations that a user wrote",
    "leakaudit/judging/gate/baseline.py": "lists in JSON that is about to be written",
    "leakaudit/judging/gate/baseline.py:Baseline.text": "lists in JSON that is about to be written",
    "leakaudit/traces/layers.py:kept": TYPED,
    "leakaudit/traces/layers.py:_matching": TORCH,
    "leakaudit/traces/layers.py:_module": TORCH,
    "leakaudit/protocols/recording.py:_wires": TYPED,
    "leakaudit/protocols/topology.py:_read": FOREIGN,
    "leakaudit/_util/revision.py": FOREIGN,
    "leakaudit/protocols/topology.py:_radius": TYPED,
    "leakaudit/protocols/topology.py:make": TYPED,
    "leakaudit/core/registry.py:_import": TYPED,
    "leakaudit/core/registry.py:_list": TYPED,
    "leakaudit/core/registry.py:add_plugins": TYPED,
    "leakaudit/core/registry.py:_own": MODULE,
    "leakaudit/core/registry.py:_told": TYPED,
    "leakaudit/protocols/equations/file.py:_is_reserved": TYPED,
    "leakaudit/core/registry.py:_named": TYPED,
    "leakaudit/core/registry.py:get": TYPED,
    "leakaudit/core/registry.py:configure": "the name of a class, which may be private",
    "leakaudit/core/registry.py:written": SHOWN,
    "leakaudit/reporting/rendering/console.py:printed": SHOWN,
    "leakaudit/reporting/rendering/cards.py:_colour": SHOWN,
    "leakaudit/traces/writer.py:_aborted": NAMED,
    "leakaudit/reporting/trackers/__init__.py:_numbers": MODULE,
    "leakaudit/reporting/trackers/content.py:_files": NAMED,
    "leakaudit/reporting/trackers/content.py:_side_by_side": FORMAT,
    "leakaudit/reporting/trackers/content.py:safe": NAMED,
    "leakaudit/reporting/rendering/html/__init__.py:_code": SHOWN,
    "leakaudit/reporting/rendering/sweep_text.py:is_number": SHOWN,
    "leakaudit/reporting/rendering/html/inline.py": SVG,
    "leakaudit/reporting/rendering/html/inline.py:_local": SVG,
    "leakaudit/reporting/rendering/html/inline.py:inline": SVG,
    "leakaudit/reporting/rendering/html/topology.py:_place": SHOWN,
    "leakaudit/reporting/rendering/latex.py:escape": SHOWN,
    "leakaudit/reporting/rendering/markdown.py:escape": SHOWN,
    "leakaudit/reporting/figures/curves.py:_point": SHOWN,
    "leakaudit/reporting/figures/curves.py:_texts": SHOWN,
    "leakaudit/reporting/figures/paper_images.py:_image": "a data URI that the gallery wrote",
    "leakaudit/reporting/findings/redaction.py": "the form of a version of a package",
    "leakaudit/reporting/findings/redaction.py:_system": "the name of the system, with which Python begins",
    "leakaudit/scoring/lpips_weights.py": TORCH,
    "leakaudit/scoring/lpips_weights.py:_canonical": TORCH,
    "leakaudit/scoring/lpips_weights.py:_fill": TORCH,
    "leakaudit/scoring/lpips_weights.py:_from_cache": NAMED,
    "leakaudit/scoring/lpips_weights.py:_load": TORCH,
    "leakaudit/scoring/lpips_weights.py:read": TORCH,
    "leakaudit/runs/sweeping/merge.py:beside": NAMED,
    "leakaudit/runs/sweeping/store.py:Store.times": FORMAT,
    "leakaudit/runs/sweeping/work.py:failure": ERROR,
    "leakaudit/tasks/_torchvision.py:_load": MODULE,
    "leakaudit/tasks/build_task.py:_imported": TYPED,
    "leakaudit/tasks/build_task.py:check_constants": TORCH,
    "leakaudit/core/trace.py:Trace.__post_init__": FORMAT,
    "leakaudit/tasks/weights.py": TYPED,
    "leakaudit/tasks/weights.py:named": TYPED,
    "leakaudit/tasks/data.py": TYPED,
    "leakaudit/tasks/data.py:_parts": TYPED,
    "leakaudit/tasks/data.py:_planted": TYPED,
    "leakaudit/tasks/selected_data.py:_of_classes": TYPED,
    "leakaudit/tasks/data.py:load": TYPED,
    "leakaudit/tasks/data_files.py:_table": FOREIGN,
    "leakaudit/tasks/data_files.py:read_folder": NAMED,
    "leakaudit/tasks/data_sources.py:_torchvision_data": ERROR,
    "leakaudit/tasks/data_sources.py:text": "Python's own documentation, for its white space",
    "leakaudit/core/trace.py": STORED,
    "leakaudit/_util/untrusted/archive.py": FORMAT,
    "leakaudit/traces/_storage/arrays.py:_array": ERROR,
    "leakaudit/traces/_storage/foreign.py:_first_line": ERROR,
    "leakaudit/traces/_storage/foreign.py:_trace": FORMAT,
    "leakaudit/traces/_storage/foreign.py:read_npz": FORMAT,
    "leakaudit/_util/untrusted/safe_reader.py": "a list of words in the source",
    "leakaudit/traces/_storage/shards.py": NAMED,
    "leakaudit/traces/_storage/sidecar.py": FOREIGN,
    "leakaudit/traces/_storage/sizes.py:_first_layer": TORCH,
    "leakaudit/traces/_storage/wellformed.py:_kinds": FORMAT,
    "leakaudit/traces/_storage/wellformed.py:type_of": TORCH,
    "leakaudit/traces/callers.py:of_frame": MODULE,
    "leakaudit/traces/convert.py:convert": TYPED,
    "leakaudit/traces/gaps.py:_each": SHOWN,
    "leakaudit/traces/recorder.py:_is_folder": TYPED,
    "leakaudit/traces/recorder.py:_check": TORCH,
    "leakaudit/traces/trace_file.py:truth_path": NAMED,
    "leakaudit/reporting/viewing/export.py": NAMED,
    "leakaudit/reporting/viewing/export.py:_interrupted": NAMED,
    "leakaudit/reporting/viewing/files.py:folders": NAMED,
    "leakaudit/reporting/viewing/filters.py:Query.matches": TYPED,
    "leakaudit/reporting/viewing/pages.py:_folder": NAMED,
    "leakaudit/reporting/viewing/pages.py:report": "our own page, into which a link is inserted",
    "leakaudit/reporting/viewing/running.py:_some": NAMED,
    "leakaudit/reporting/viewing/server.py:_Guard._refused": "an address that a browser sends",
    "leakaudit/reporting/viewing/summaries.py:_opening": FORMAT,
    "leakaudit/reporting/viewing/summaries.py:_origin": FORMAT,
    "reports/__init__.py": MODULE,
    "reports/latex.py:_definitions": "names of our own columns",
    "reports/latex.py:_minus": SHOWN,
    "reports/latex.py:_power": SHOWN,
    "reports/latex.py:_shown": "names of our own columns",
    "reports/sarif.py:_id": SHOWN,
    "victims/__init__.py": MODULE,
}


def takes_text_apart(call: ast.Call) -> bool:
    """Whether a call is one of the module re, or a method of text; a tensor's split takes a size."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "re":
        return True
    if function.attr != "split":
        return function.attr in METHODS
    if not call.args:
        return not call.keywords
    separator = call.args[0]
    return isinstance(separator, ast.Constant) and isinstance(separator.value, str | bytes)


def readers(node: ast.AST, scope: str = "") -> Iterator[str]:
    """The functions below a node that take text apart, as ``Class.function``; "" at module level."""
    for child in ast.iter_child_nodes(node):
        inside = scope
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{scope}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call) and takes_text_apart(child):
            yield inside
        yield from readers(child, inside)


def test_text_is_taken_apart_only_where_it_comes_from_outside(project: Path) -> None:
    found: set[str] = set()
    for folder in FOLDERS:
        for file in sorted((project / folder).rglob("*.py")):
            place = file.relative_to(project).as_posix()
            for scope in readers(ast.parse(file.read_text(encoding="utf-8"))):
                found.add(f"{place}:{scope}".rstrip(":"))
    unknown = found - READS.keys()
    assert sorted(unknown) == [], "keep the value typed, or say in READS what is read"
    assert sorted(READS.keys() - found) == [], "remove these lines from READS"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def level(x):\n    return x.note.partition(':')[0]", ["level"]),
        ("class A:\n    def b(self, x):\n        return re.search('a', x)", ["A.b"]),
        ("FORM = re.compile('a')", [""]),
        ("def f(x):\n    return [line.split() for line in x.splitlines()]", ["f", "f"]),
        ("def f(x):\n    return x.split(64), x.split(sizes, dim=1), x.split(', ')", ["f"]),
        ("def f(x):\n    return x.replace('a', 'b').join(y)", []),
    ],
)
def test_the_walk_finds_what_takes_text_apart(code: str, expected: list[str]) -> None:
    assert list(readers(ast.parse(code))) == expected
