"""Privacy curves and the bounds that follow from them.

Every bound holds under the adjacency of the mu or epsilon that it receives.
"""
