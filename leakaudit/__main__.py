"""`python -m leakaudit` is the command `leakaudit`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the current folder first, so that its modules would replace those we import.
        del sys.path[0]
    from leakaudit.cli import main

    sys.exit(main())
