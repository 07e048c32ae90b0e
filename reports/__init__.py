"""Report formats: one file per format, registered under the name of the file."""

if not __name__.startswith("leakaudit."):
    raise ImportError(
        "reports/ is the package leakaudit.reports: use 'import leakaudit.reports', "
        "or every format would be registered twice"
    )
