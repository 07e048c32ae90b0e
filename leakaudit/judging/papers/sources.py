"""Constructors of rows, one per paper, with the fields that all claims of the paper share.

The other fields of `PublishedClaim` are keyword arguments of the call.
"""

from __future__ import annotations

from functools import partial

from leakaudit.judging.papers.row import PublishedClaim, Quality

dpnorm_row = partial(PublishedClaim, paper="dp-norm", quality=Quality.READ)
recal_row = partial(PublishedClaim, paper="dp-recal", quality=Quality.RECONSTRUCTED)
dkm_row = partial(PublishedClaim, paper="dp-dkm", quality=Quality.READ)
secured_row = partial(PublishedClaim, paper="secured-fl", quality=Quality.READ)
pdmm_row = partial(PublishedClaim, paper="pdmm-thesis", quality=Quality.READ)
other_row = partial(PublishedClaim, paper="other", quality=Quality.RECALLED)
