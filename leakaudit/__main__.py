"""`python -m leakaudit` is the command `leakaudit`."""

import sys

from leakaudit.cli import main

if __name__ == "__main__":
    sys.exit(main())
