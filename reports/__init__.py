"""Report formats: one file per format, registered under the name of the file."""

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "reports/ is the package leakaudit.reports: write 'import leakaudit.reports', "
        "or all of it would exist twice"
    )
