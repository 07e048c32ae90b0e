"""The folder that a tapped program finds first on its path; it holds only `sitecustomize`."""
