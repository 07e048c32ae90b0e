"""Attacks: one paper, one file; each registers itself under the name of its file."""

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "attacks/ is the package leakaudit.attacks: "
        "write 'import leakaudit.attacks', or all of it would exist twice"
    )
