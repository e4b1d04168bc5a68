"""Whether the text of a reason says what its parameters say."""

from __future__ import annotations

import re

from tandem.reasons.causes import Cause
from tandem.reasons.words import sentence

_TEXTS = (
    "gpu", "resource", "amount", "job", "namespace", "role", "pod", "node", "workload", "detail"
)  # fmt: skip
_NUMBERS = ("value", "bound", "gpus", "nodes", "pods", "failed", "leaving", "seconds")


def unsaid(cause: Cause, text: str = "") -> list[str]:
    """Return the parameters of a cause that its text (that of `words.py`) does not have."""
    said = text or sentence(cause)
    numbers = {float(found) for found in re.findall(r"\d+(?:\.\d+)?", said.replace(",", ""))}

    def has(value: float) -> bool:
        return any(
            abs(found - factor * value) <= rounded
            for found in numbers
            for factor, rounded in ((1, 0.5), (100, 0.5))
        )

    missing = [
        name for name in _TEXTS if (value := getattr(cause, name)) and str(value) not in said
    ]
    missing += [name for name in _NUMBERS if (value := getattr(cause, name)) and not has(value)]
    return missing
