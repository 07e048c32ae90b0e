"""Transformer blocks as torch's own encoder layer, to compare models with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

NAMES = {
    "norm1": "norm1",
    "norm2": "norm2",
    "linear1": "up",
    "linear2": "down",
    "self_attn.out_proj": "join",
}


def encoder(weights: Mapping[str, Tensor], width: int, heads: int) -> nn.TransformerEncoderLayer:
    """Torch's pre-norm layer with the weights of a model's first block, in float64."""
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        4 * width,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    parts = {}
    for kind in ("weight", "bias"):
        for theirs, mine in NAMES.items():
            parts[f"{theirs}.{kind}"] = weights[f"blocks.0.{mine}.{kind}"]
        three = [weights[f"blocks.0.{name}.{kind}"] for name in ("query", "key", "value")]
        parts[f"self_attn.in_proj_{kind}"] = torch.cat(three)
    layer.load_state_dict(parts)
    return layer
