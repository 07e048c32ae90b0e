"""The description that somebody starts from: TOML with what was found, how sure that is, and what he must say himself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ASK = "NOT KNOWN"
MODEL = {
    "name": "see 'leakaudit list models'; or package.module:factory",
    "args": "of the model",
    "shape": "of one input: channels, height, width; or its length",
    "classes": "",
    "loss": "cross_entropy, binary or squared",
    "mean": "the model sees (input - mean) / std, one entry or one a channel",
    "std": "",
    "levels": "255 where inputs are k/255, else 0",
}


MESSAGES = (
    "# scale = 4.0              # what is sent times this is what the protocol names, e.g. if ranks divide gradients by 4 before the sum",
    "# tags = [0]               # tags of the messages that count",
    '# order = ["layer1.bias"]  # parameters as they stand in a message, where that is not the order of the model',
)


def toml(values: Mapping[str, Any], said: Mapping[str, str], evidence: tuple[str, ...]) -> str:
    """Return the text of a description.

    values: as `description.of` takes them. said: dotted key -> what stands behind it, `ASK` first where nobody knows. evidence: lines for
    the head of the file.
    """
    lines = [
        "# What the program's messages are, for `leakaudit tap --describe`. Written by `leakaudit tap describe`: read it, mend it."
    ]
    lines += [f"# {line}" for line in evidence]
    lines += [
        _line(name, values[name], said.get(name, "")) for name in ("payload", "protocol", "first")
    ]
    lines += [
        "",
        "[params]  # the protocol's constants; what is not here has the default of 'leakaudit record "
        + values["protocol"]
        + " --help'",
    ]
    lines += [
        _line(name, v, said.get(f"params.{name}", ""))
        for name, v in values.get("params", {}).items()
    ]
    lines += ["", "[model]"]
    lines += [
        _line(name, v, said.get(f"model.{name}", MODEL.get(name, "")))
        for name, v in values.get("model", {}).items()
    ]
    if "samples" not in values.get("params", {}):
        lines.insert(
            lines.index("[model]") - 1,
            "# samples = 1              # records behind a gradient, where you know it",
        )
    lines += ["", "[messages]" if values.get("messages") else "# [messages]"]
    lines += [
        _line(name, v, "what is sent times this is what the protocol names")
        for name, v in values.get("messages", {}).items()
    ]
    lines += MESSAGES
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, comment: str) -> str:
    text = f"{name} = {_value(value)}"
    return f"{text:26} # {comment}" if comment else text


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
            if value
            else "{}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
