"""The initial description: TOML with the findings, their certainty, and gaps to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leakaudit._util import config

ASK = "NOT KNOWN"  # in place of a value that the user must fill in; no description is read with it
MODEL = {  # default comment for a key of [model]
    "name": "see 'leakaudit list models'; or package.module:factory, or file.pt2",
    "args": "arguments of the model",
    "shape": "shape of one input: channels, height, width; or its length",
    "classes": "",
    "loss": "cross_entropy, binary, squared or next_token",
    "mean": "the model receives (input - mean) / std; one entry, or one per channel",
    "std": "",
    "levels": "255 if inputs are k/255, else 0",
}
SCALE = "what a node sends, times this, is the protocol's value; a server's models are not scaled"
SCALES = "round = its scale from then on"
STREAM = "process group or model of the messages; the log has others of the same size"
HEAD = (
    "# The program's messages, for --describe of `leakaudit tap` and `leakaudit trace import`. "
    "Inferred from them: check and correct it."
)
PARAMS = (
    "[params]  # the protocol's constants; for omitted ones, the defaults of "
    "'leakaudit record {protocol} --help'"
)
SAMPLES = "# samples = …              # records per node: not known"
MESSAGES = (
    f"# scale = 4.0              # {SCALE}; e.g. 4.0 if 4 ranks divide gradients before the sum",
    "# tags = [0]               # tags of the messages to use",
    '# order = ["layer1.bias", "layer1.weight.T"]  # the parameters in the order of a message; '
    ".T: stored as (in, out)",
)


@dataclass(frozen=True)
class Comment:
    """The comment beside a value."""

    text: str  # empty for no comment
    known: bool = True  # whether the value was found; otherwise `ASK` takes its place


NONE = Comment("")


def toml(
    values: Mapping[str, Any], comments: Mapping[str, Comment], evidence: tuple[str, ...]
) -> str:
    """Return the text of a description."""
    lines = [HEAD]
    lines += [f"# {line}" for line in evidence]
    for name in ("payload", "protocol", "first"):
        lines.append(_line(name, values[name], comments.get(name, NONE)))

    params = values.get("params", {})
    lines += ["", PARAMS.format(protocol=values["protocol"])]
    for name, value in params.items():
        lines.append(_line(name, value, comments.get(f"params.{name}", NONE)))
    if "samples" not in params:
        shown = comments.get("params.samples", NONE).text
        lines.append("; ".join(filter(None, (SAMPLES, shown))))

    lines += ["", "[model]"]
    for name, value in values.get("model", {}).items():
        usual = Comment(MODEL.get(name, ""))
        lines.append(_line(name, value, comments.get(f"model.{name}", usual)))

    messages = values.get("messages", {})
    lines += ["", "[messages]" if messages else "# [messages]"]
    for name, value in messages.items():
        usual = Comment({"stream": STREAM, "scales": SCALES}.get(name, SCALE))
        lines.append(_line(name, value, comments.get(f"messages.{name}", usual)))
    lines += MESSAGES
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, comment: Comment) -> str:
    text = f"{name} = {config.inline(value if comment.known else ASK)}"
    if not comment.text:
        return text
    return f"{text:26} # {comment.text}"
