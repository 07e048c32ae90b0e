"""What theory allows: privacy curves and what they imply.

Every bound holds under the adjacency of the mu or epsilon that it is given.
"""
