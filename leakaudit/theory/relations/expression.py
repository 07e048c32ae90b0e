"""Named vectors and exact linear forms over them, in which protocols are declared."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from leakaudit.core.errors import LeakauditError

Kind: TypeAlias = Literal["secret", "gradient", "state", "noise", "public", "message"]
Law: TypeAlias = Literal[
    "gaussian", "laplace", "uniform", "truncated_laplace", "truncated_gaussian"
]
LAWS: tuple[str, ...] = get_args(Law)
TRUNCATED: frozenset[Law] = frozenset({"truncated_laplace", "truncated_gaussian"})
SECRET = frozenset({"secret", "gradient"})
DEFINED = ("state", "message")  # by relations
Number: TypeAlias = int | float | str | Fraction

# Two rationals with denominators up to 1e5 differ by at least 1e-10, while a sum of a few floats
# has an error of about 1e-16. Therefore at most one of them lies within CLOSE, and a float without
# such a rational is rejected.
LARGEST_DENOMINATOR = 10**5
CLOSE = 1e-14


ONE = Fraction(1)


def exact(value: Number) -> Fraction:
    """Return a coefficient as the rational number that its author intended.

    1 - 2/3 in binary is not 1/3, and exact arithmetic on the raw bits finds leaks that do not exist
    (docs/relations.md, pitfalls).

    Args:
        value: A float becomes the nearest rational with a denominator up to 1e5, within a relative
            distance of 1e-14.

    Raises:
        LeakauditError: A float is not close to such a rational, or the value is not a number.
    """
    if isinstance(value, Fraction):
        return value
    try:
        if isinstance(value, str):
            return Fraction(value)
        if not isinstance(value, float):
            return Fraction(operator.index(value))
        near = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise LeakauditError(
            f"coefficient {value!r}: expected an int, a Fraction, a string such as '1/3', or a "
            "finite float"
        ) from None
    if abs(float(near) - value) > CLOSE * abs(value):
        raise LeakauditError(
            f"coefficient {value!r}: no fraction with denominator <= {LARGEST_DENOMINATOR} equals "
            f"this float; pass a Fraction or '{value!r}'"
        )
    return near


@lru_cache(maxsize=256)  # a protocol asks for the same few constants in every step
def decimal(value: float) -> Fraction:
    """Return a protocol's constant as the decimal number that was written: 0.05 is 1/20.

    Args:
        value: Any finite float.
    """
    return Fraction(repr(float(value)))


@dataclass(frozen=True, slots=True)
class Vector:
    """One vector of the model's length, named by a protocol."""

    kind: Kind  # its role in the protocol
    name: str
    # the node that holds it, None for no particular node; for a message, the sender
    owner: int | None
    round: int
    # distinguishes vectors of one name, owner and round, such as z_{i|j} by j
    index: int | None = None
    # standard deviation per coordinate of noise, or of the error that a channel adds to a message
    std: float = 0.0
    dst: tuple[int, ...] | None = None  # the receivers of a message, None for everybody
    secure: bool = False  # whether an outsider cannot read a message
    law: Law = "gaussian"  # distribution of noise
    width: float = math.inf  # largest absolute value of a coordinate of truncated noise

    @property
    def label(self) -> str:
        """``g[0,3]``, ``z[0|1,3]`` (index 1), ``dz[0>1,3]`` (a message), ``x[0>*,3]`` (to all)."""
        where = ""
        if self.owner is not None:
            where = str(self.owner)
        if self.kind == "message":
            receivers = "*"
            if self.dst is not None:
                receivers = "&".join(map(str, self.dst))
            where += f">{receivers}"
        if self.index is not None:
            if where:
                where += "|"
            where += str(self.index)
        if where:
            where += ","
        return f"{self.name}[{where}{self.round}]"


class Expression:
    """A sparse linear form over the vectors of one declaration, with rational coefficients."""

    __slots__ = ("home", "terms")
    __array_ufunc__ = None  # numpy scalars delegate the product to __rmul__

    def __init__(self, home: Sequence[Vector], terms: Mapping[int, Fraction]) -> None:
        self.home = home
        self.terms = terms

    def __add__(self, other: Form) -> Expression:
        if not isinstance(other, Expression):
            if other != 0:
                raise LeakauditError(
                    f"cannot add {other!r} to {self}: only vectors of one declaration can be added"
                )
            return self
        if other.home is not self.home:
            raise LeakauditError(
                f"{self} and {other} belong to different declarations; "
                "declare one protocol in one Relations object"
            )
        return self._plus(other)

    __radd__ = __add__

    def _plus(self, other: Expression, *, minus: bool = False) -> Expression:
        terms = dict(self.terms)
        for k, factor in other.terms.items():
            v = -factor if minus else factor
            if k not in terms:
                terms[k] = v
            elif total := terms[k] + v:
                terms[k] = total
            else:
                del terms[k]
        return Expression(self.home, terms)

    def __neg__(self) -> Expression:
        return Expression(self.home, {k: -v for k, v in self.terms.items()})

    def __sub__(self, other: Form) -> Expression:
        if not isinstance(other, Expression) or other.home is not self.home:
            return self + (-other)
        return self._plus(other, minus=True)

    def __rsub__(self, other: Form) -> Expression:
        return -self + other

    def __mul__(self, factor: Number) -> Expression:
        if isinstance(factor, Expression):
            raise LeakauditError(
                f"({self}) * ({factor}) is not linear; declare its result with opaque(…, of=[…])"
            )
        scale = exact(factor)
        if not scale:
            return Expression(self.home, {})
        if scale == 1:
            return self
        if scale == -1:
            return -self
        terms = {k: v * scale for k, v in self.terms.items()}
        return Expression(self.home, terms)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Number) -> Expression:
        scale = exact(divisor)
        if not scale:
            raise LeakauditError(f"cannot divide {self} by zero")
        return Expression(self.home, {k: v / scale for k, v in self.terms.items()})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Expression) and other.home is self.home and other.terms == self.terms
        )

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        text = ""
        for k, v in sorted(self.terms.items()):
            if text and v < 0:
                text += " - "
            elif text:
                text += " + "
            elif v < 0:
                text += "-"
            if abs(v) != 1:
                text += f"{abs(v)} "
            text += self.home[k].label
        return text or "0"

    __repr__ = __str__

    @property
    def vector(self) -> int:
        """Place in `home` of a form that is a single vector; LeakauditError for any other."""
        if len(self.terms) != 1 or next(iter(self.terms.values())) != 1:
            raise LeakauditError(f"expected one vector, got {self}")
        return next(iter(self.terms))

    @property
    def rounds(self) -> set[int]:
        """Rounds of the vectors in the form."""
        return {self.home[k].round for k in self.terms}


def floats(terms: Mapping[int, Fraction]) -> dict[int, float]:
    """Return coefficients as the nearest floating-point numbers."""
    # The same numbers as float(factor), which takes three times as long.
    return {place: factor.numerator / factor.denominator for place, factor in terms.items()}


def labels(vectors: Sequence[Vector], some: Iterable[int]) -> str:
    """Return the names of some vectors of a declaration, in its order."""
    return ", ".join(vectors[k].label for k in sorted(some))


def places(vectors: Iterable[Expression]) -> list[int]:
    """Return the places of single vectors in their declaration, in order."""
    return [vector.vector for vector in vectors]


# The only number allowed is 0, with which `sum` starts.
Form: TypeAlias = Expression | int | Fraction
