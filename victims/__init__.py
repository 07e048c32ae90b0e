"""Victims: one protocol, one file; each registers itself under the name of its file."""

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "victims/ is the package leakaudit.victims: write 'import leakaudit.victims', "
        "or all of it would exist twice"
    )
