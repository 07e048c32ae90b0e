"""The folder that comes first on a tapped program's path; it contains only `sitecustomize`."""
