"""What remains between the gradients in noise-free messages and those of the truth, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A loss that is scaled leaves a multiple of the gradients, and an l2 term or weight decay that
# nobody declared a multiple of the models. Both are regressed on the remainder: a program's
# constant then shows, however small it is.

# Choices. A remainder counts if it is larger than this many times the bound of its rounding errors,
# and a share of the gradients that computing them in another way does not explain: in float32 they
# agree to about 1e-5, or with tensor cores to 1e-3. What two numbers explain is no rounding.
ROUNDING = 5.0
EXPLAINED_SHARE = 3e-6
OTHER_SHARE = 2e-3
EXPLAINED = 0.99
FEWEST = 16  # coordinates, so that two coefficients do not explain a remainder by chance


@dataclass
class Residual:
    """Sums over all relations that contain gradients, and no unknown vector."""

    numbers: int
    rest: float  # squared norm of the remainder
    rounding: float  # squared norm of the bounds of its rounding errors
    products: Floats  # products of the contributions of the gradients, and of models in their place
    along: Floats  # their products with the remainder

    @classmethod
    def nothing(cls) -> Residual:
        """Return the sums over no relation."""
        return cls(0, 0.0, 0.0, np.zeros((2, 2)), np.zeros(2))

    def add(self, rest: Floats, gradients: Floats, models: Floats, rounding: float) -> None:
        """Add a relation.

        Args:
            rest: (c,) The difference of its two sides.
            gradients: (c,) What the gradients contribute to it.
            models: (c,) What their models would contribute in their place.
        """
        both = np.stack([gradients, models])
        self.numbers += len(rest)
        self.rest += float(rest @ rest)
        self.rounding += rounding**2
        self.products += both @ both.T
        self.along += both @ rest

    @property
    def share(self) -> float:
        """The remainder relative to the gradients."""
        size = float(self.products[0, 0])
        return math.sqrt(self.rest / size) if size > 0 else 0.0

    def explained(self, parts: list[int]) -> tuple[float, Floats]:
        """Return the explained share of the squared remainder, and the coefficients.

        Args:
            parts: 0 for gradients, 1 for models.
        """
        found = np.zeros(2)
        scale = np.sqrt(np.diag(self.products)[parts])
        if not self.rest or not (scale > 0).all():
            return 0.0, found
        normal = self.products[np.ix_(parts, parts)] / np.outer(scale, scale)
        found[parts] = np.linalg.lstsq(normal, self.along[parts] / scale, rcond=1e-10)[0] / scale
        share = float(found @ self.along) / self.rest
        return share, -found  # the messages contain what the declared relations lack

    @property
    def cause(self) -> str:
        """What explains the remainder, in words; empty if nothing that is known does."""
        if self.numbers < FEWEST or not math.isfinite(self.rest):
            return ""
        for parts in ([0], [1], [0, 1]):
            share, (factor, decay) = self.explained(parts)
            if share < EXPLAINED:
                continue
            said: list[str] = []
            if 0 in parts:
                said.append(f"a factor of {1 + factor:.4g} of the gradients")
            if 1 in parts:
                said.append(
                    f"{decay:.3g} times the models (an l2 term or weight decay that is not "
                    "declared)"
                )
            return f"{' and '.join(said)} explains {100 * min(share, 1):.4g} % of the difference"
        return ""

    @property
    def notable(self) -> bool:
        """Whether the remainder is more than rounding and another way to compute gradients."""
        if not self.rest > ROUNDING**2 * self.rounding:
            return False
        return self.share > (EXPLAINED_SHARE if self.cause else OTHER_SHARE)

    @property
    def says(self) -> str:
        """The remainder and its cause, as a sentence."""
        cause = self.cause or "neither a factor nor a multiple of the models explains it"
        return (
            f"the gradients in the messages differ by {100 * self.share:.2g} % from those of the "
            f"truth: {cause}"
        )
