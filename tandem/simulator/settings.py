"""Profiles by name or file, with single values set from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tandem.errors import UsageError
from tandem.files import parse_yaml, read_yaml
from tandem.policy.catalog import Profile, UnknownProfileError, load_profile


def read_profile(name: str, settings: Sequence[str] = ()) -> Profile:
    """Return the shipped profile `name`, or that of a YAML file, with `settings` applied.

    A setting is `path=value`, the path in the profile's own names, a policy of a list by its kind:
    `order.thresholds_gpu_s=[3250,7200]`, `constraints.peak_fits.kind=...`. Raises UsageError with
    the nearest valid names.
    """
    try:
        if name.endswith((".yaml", ".yml")):
            profile = Profile.model_validate(read_yaml(Path(name), "Check --profile."))
        else:
            profile = load_profile(name)
    except UnknownProfileError as error:
        raise UsageError(str(error), "All of them: tandem simulate --list.") from error
    except ValidationError as error:
        raise UsageError(f"{name}: {explain(error)}", "Correct the file.") from error
    if not settings:
        return profile
    values = profile.model_dump(mode="json")
    for setting in settings:
        _set(values, setting)
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        raise UsageError(
            f"--set: {explain(error)}", "docs/replay.md says how a value is changed."
        ) from error


def explain(error: ValidationError) -> str:
    """Return the first complaint with its path, in one line."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path}: {first['msg']}{more}"


def _set(values: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    if not equals:
        raise UsageError(f"--set {setting!r} is not key=value", "For example order.slice_s=60.")
    at: Any = values
    parts = path.split(".")
    for i, part in enumerate(parts):
        names = _names(at)
        if part not in names:
            near = get_close_matches(part, names, n=3) or sorted(names)
            raise UsageError(f"--set {setting!r}: no key {part!r}", f"Nearest: {', '.join(near)}.")
        if i == len(parts) - 1 and isinstance(at, dict):
            at[part] = parse_yaml(text, f"--set {setting!r}", "For example order.slice_s=60.")
            return
        at = at[part] if isinstance(at, dict) else next(e for e in at if e["kind"] == part)
    raise UsageError(f"--set {setting!r} names a whole policy", "Name one of its parameters.")


def _names(at: object) -> list[str]:
    if isinstance(at, dict):
        return list(at)
    if isinstance(at, list):
        return [entry["kind"] for entry in at if isinstance(entry, dict) and "kind" in entry]
    return []
