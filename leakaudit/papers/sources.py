"""Rows of one paper each: what is the same for all claims of a paper stands here, once.

A call takes what differs between the claims, by the names of the fields of `Row`.
"""

from __future__ import annotations

from functools import partial

from leakaudit.papers.row import Quality, Row

dpnorm_row = partial(Row, paper="000", quality=Quality.READ)
recal_row = partial(Row, paper="001", quality=Quality.RECONSTRUCTED)
dkm_row = partial(Row, paper="002", quality=Quality.READ)
secured_row = partial(Row, paper="003", quality=Quality.READ)
pdmm_row = partial(Row, paper="004", quality=Quality.READ)
other_row = partial(Row, paper="other", quality=Quality.RECALLED)
