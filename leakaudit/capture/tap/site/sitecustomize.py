"""Runs at the start of every Python process of a tapped program: starts the tap, then whatever `sitecustomize` stood there before."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    if "LEAKAUDIT_TAP" in os.environ:
        home = os.path.abspath(
            os.path.join(here, *[os.pardir] * 4)
        )  # above leakaudit/capture/tap/site
        sys.path.insert(0, home)  # the program may run in an environment that has no leakaudit
        try:
            from leakaudit.capture.tap.hooks import install

            install()
        except Exception as error:
            sys.stderr.write(f"leakaudit tap: this process is not tapped: {error}\n")
        finally:
            sys.path.remove(home)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_start()
