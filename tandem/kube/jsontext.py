"""JSON as an API server reads it: without NaN and infinity, in either direction."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from tandem.kube.errors import Invalid


def encoded(body: object) -> bytes:
    """Return the JSON text of a body.

    Raises:
        Invalid: it has NaN, an infinity, or something that JSON has no word for.
    """
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, TypeError) as error:
        raise Invalid(400, f"the object is no JSON: {error}") from error


def decoded(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """Return what a JSON text says; equal keys and short texts are shared between documents.

    Raises:
        ValueError: it is no JSON. NaN and Infinity are none; a number such as 1e999 becomes an
            infinity here, which the contracts refuse.
    """
    return from_json(text, allow_inf_nan=False)
