"""Which rounds of a recording are not compared with its declaration, in words."""

from __future__ import annotations

WHY = "too many for this check"


def untested(last: int) -> str:
    """Return that relations between messages were tested up to a round only."""
    return f"relations between messages after round {last} were not tested: {WHY}"


def unexplained(last: int) -> str:
    """Return that messages were compared with true gradients up to a round only."""
    return f"gradients in messages after round {last} were not compared with the truth: {WHY}"


def subjects(relations: int | None, gradients: int | None) -> list[str]:
    """Return what was not examined after these rounds; None stands for no such round."""
    after = {"relations between": relations, "gradients in": gradients}
    return [f"{what} messages after round {k}: {WHY}" for what, k in after.items() if k is not None]
