"""The process of one configuration: `python -m predictor.collect.worker MODULE:CLASS DEVICE`.

Reads a JSON object a line from its standard input and answers each with one: `{"ok": ...}`, or
`{"status": "oom" | "error", "error": ...}`. It imports PyTorch before it is asked anything, so that
a process can be warm when its turn comes, and touches the device only then. It ends when its input
does, so that it never outlives the process that started it by more than what it is at.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from predictor.collect.catalog import MODELS

_ALL = {model.name: model for models in MODELS.values() for model in models}


def main() -> None:
    """Serve until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is none of our answers
    module, name = sys.argv[1].split(":")
    backend = getattr(importlib.import_module(module), name)(sys.argv[2])
    _say(answers, {"ok": {}})
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"ok": _do(backend, json.loads(line))}
        except Exception as error:  # any failure of a model is an outcome to record
            out_of_memory = type(error).__name__ == "OutOfMemory"
            if not out_of_memory:
                traceback.print_exc()
            status = "oom" if out_of_memory else "error"
            answer = {"status": status, "error": f"{type(error).__name__}: {error}"[:300]}
        _say(answers, answer)


def _do(backend: Any, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a backend is chosen by name
    match asked["do"]:
        case "info":
            found: dict[str, Any] = backend.info()
        case "describe":
            found = backend.describe(_ALL[asked["model"]], asked["sequence"])
        case "prepare":
            found = backend.prepare(_ALL[asked["config"]["model"]], asked["config"])
        case "measure":
            found = backend.measure(asked["seconds"])
        case "details":
            found = backend.details()
        case other:
            raise ValueError(other)
    return found


def _say(answers: Any, answer: dict[str, Any]) -> None:  # noqa: ANN401 - a text file
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
