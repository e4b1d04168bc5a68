"""Kubernetes quantities (`12Gi`, `500m`), parsed exactly."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

_FACTORS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)",
    flags=re.ASCII,  # no digits of other scripts, which no API server takes
)

_KEPT = 4096  # a cluster has few different ones, and most events repeat them


@lru_cache(_KEPT, typed=True)  # True is no 1
def parse_quantity(text: str | int | float) -> Decimal:
    """Return the value of a quantity in its base unit.

    Raises:
        ValueError: `text` is no quantity.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{str(text)[:64]!r} is not a quantity such as 12Gi, 1500M or 0.5")
    number, exponent, suffix = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _FACTORS[suffix or ""]


def is_zero(quantity: object) -> bool:
    """Say whether a quantity asks for nothing: 0 in any spelling, or no value at all.

    Custom resources keep what their authors wrote, such as `0.0`, `0Gi` or an empty value. The
    API server reads them so once a pod is made of them.
    """
    if quantity is None or quantity == "":
        return True
    try:
        return parse_quantity(str(quantity)) == 0
    except ValueError:
        return False
