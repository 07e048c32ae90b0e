"""Run at the start of every Python process of a tapped program.

Python imports the first module called `sitecustomize` on its path, and
`leakaudit.capture.tap.launch` puts this folder first. The module starts the tap, and then runs the
`sitecustomize` that it shadows.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if "LEAKAUDIT_TAP" in os.environ:
        _install_tap(here)
    _run_shadowed()


def _install_tap(here: str) -> None:
    """Start the tap, with leakaudit temporarily on the path: the environment may lack it."""
    above_package = os.path.join(here, os.pardir, os.pardir, os.pardir, os.pardir)
    home = os.path.abspath(above_package)  # this folder is leakaudit/capture/tap/site
    sys.path.insert(0, home)
    try:
        from leakaudit.capture.tap.hooks.install import install

        install()
    except Exception as error:
        sys.stderr.write(f"leakaudit tap: this process is not tapped: {error}\n")
    finally:
        sys.path.remove(home)


def _run_shadowed() -> None:
    """Run the `sitecustomize` that Python would have imported without the tap, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
