"""Victims: one file per protocol, registered under the name of the file."""

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "victims/ is the package leakaudit.victims: write 'import leakaudit.victims', "
        "otherwise every victim would be loaded twice"
    )
