"""Operators of extra specs, which compare a value of a host with the required value."""

import operator
from collections.abc import Callable
from typing import Any

_NUMERIC: dict[str, Callable[[float, float], bool]] = {"=": operator.ge, "==": operator.eq, "!=": operator.ne,
                                                       ">=": operator.ge, "<=": operator.le}
_TEXT: dict[str, Callable[[str, str], bool]] = {"s==": operator.eq, "s!=": operator.ne, "s<": operator.lt,
                                                "s<=": operator.le, "s>": operator.gt, "s>=": operator.ge}


def match(offered: Any, required: str) -> bool:
    """Return True if ``offered`` satisfies ``required``: an operator with an operand, or a plain text. ``=`` means "at
    least". An offered list satisfies ``<in>`` by one of its items, an offered text by a substring. Values that are not
    numbers satisfy no numeric operator."""
    words = required.split()
    if not words:
        return str(offered) == required
    first, rest = words[0], words[1:]
    if first == "<or>":
        alternatives = [item.strip() for item in required.split("<or>") if item.strip()]
        return str(offered) in alternatives
    if first == "<in>":
        return _contains(offered, " ".join(rest))
    if first == "<all-in>":
        return all(_contains(offered, word) for word in rest)
    if first in _TEXT:
        return _TEXT[first](str(offered), " ".join(rest))
    if first in _NUMERIC:
        have, wanted = _number(offered), _number(" ".join(rest))
        return have is not None and wanted is not None and _NUMERIC[first](have, wanted)
    return str(offered) == required


def _contains(offered: Any, wanted: str) -> bool:
    if isinstance(offered, (list, tuple)):
        return any(str(item) == wanted for item in offered)
    return wanted in str(offered)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
