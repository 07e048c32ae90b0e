"""A language model as people write it after GPT-2, with its names, and models that only look so."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal attention with one layer for queries, keys and values."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, -1)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        seen = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        out: Tensor = self.c_proj(seen.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Two layers with GELU."""

    def __init__(self, width: int, bias: bool, gelu: str) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)
        self.gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate=self.gelu))
        return out


class Block(nn.Module):
    """Attention and the two layers."""

    def __init__(self, width: int, heads: int, bias: bool, gelu: str, pre: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(width, heads, bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = Mlp(width, bias, gelu)
        self.pre = pre

    def forward(self, x: Tensor) -> Tensor:
        if self.pre:
            x = x + self.attn(self.ln_1(x))
            out: Tensor = x + self.mlp(self.ln_2(x))
            return out
        x = self.ln_1(x + self.attn(x))
        out = self.ln_2(x + self.mlp(x))
        return out


class Gpt(nn.Module):
    """The model; with ``pre=False`` it normalises after each part, as GPT-2 does not."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        width: int = 96,
        heads: int = 6,
        bias: bool = False,
        tied: bool = True,
        gelu: str = "none",
        pre: bool = True,
        odd: str = "",
        frozen: str = "-",
    ) -> None:
        super().__init__()
        self.odd = odd
        parts = {
            "wte": nn.Embedding(classes, width),
            "wpe": nn.Embedding(2 * shape[0], width),
            "h": nn.ModuleList([Block(width, heads, bias, gelu, pre) for _ in range(2)]),
            "ln_f": nn.LayerNorm(width, bias=bias),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(width, classes, bias=odd == "bias of the output layer")
        if tied:
            parts["wte"].weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(frozen not in name)
        if odd == "one more layer":
            self.v_head = nn.Linear(width, 1)
        if odd == "one more parameter":
            self.gate = nn.Parameter(torch.zeros(()))
        if odd == "zero projections":
            for block in parts["h"]:  # type: ignore[attr-defined]
                nn.init.zeros_(block.attn.c_proj.weight)
                nn.init.zeros_(block.mlp.c_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.transformer
        if self.odd == "an unknown token":
            x = torch.where(x == 3, 4, x)
        stream = parts["wte"](x) + parts["wpe"](torch.arange(x.shape[1]))
        for block in parts["h"]:  # type: ignore[attr-defined]
            stream = block(stream)
        logits: Tensor = self.lm_head(parts["ln_f"](stream))
        return logits
