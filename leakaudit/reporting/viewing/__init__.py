"""A viewer for a folder of runs: a local server, or pages that any web server can show.

Everything in the folder may come from a stranger. The list is made from a bounded part of every
results.json, without torch; reports are rendered in processes of their own.
"""
