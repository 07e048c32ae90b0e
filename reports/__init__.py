"""Reports: one format, one file; each registers itself under the name of its file."""

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "reports/ is the package leakaudit.reports: write 'import leakaudit.reports', "
        "or all of it would exist twice"
    )
