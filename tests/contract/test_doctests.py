"""The examples in docstrings run here; `--doctest-modules` would import the mapped folders under a second name."""

import doctest
import importlib


def test_examples_in_docstrings_hold(module_name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module_name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0, (
        f"{outcome.failed} of {outcome.attempted} examples in {module_name} failed, see the captured output"
    )
