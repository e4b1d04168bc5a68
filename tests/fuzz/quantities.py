"""Kubernetes' grammar of quantities, written anew: what the code under test is compared with."""

from __future__ import annotations

import re
from fractions import Fraction

_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
} | {f"{letter}i": Fraction(2 ** (10 * power)) for power, letter in enumerate("KMGTPE", 1)}
_GRAMMAR = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([numkMGTPEi]*))")


def value_of(text: object) -> Fraction | None:
    """Return the value of a quantity as the API server reads it, None for what is none."""
    match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    sign, whole, part, exponent, suffix = match.groups()
    if not whole and not part:
        return None
    if exponent is None and suffix not in _SUFFIX:
        return None
    found = Fraction(int(whole or 0)) + Fraction(int(part or 0), 10 ** len(part or ""))
    if exponent is not None:
        if abs(int(exponent)) > 99:
            return None
        found *= Fraction(10) ** int(exponent)
    else:
        found *= _SUFFIX[suffix]
    return -found if sign == "-" else found
