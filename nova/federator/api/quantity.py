"""Quantities of the Kubernetes API, as integers in thousandths so that sums are exact."""

import re

from nova.common.errors import Invalid

_FORM = re.compile(
    r"\+?(?=\.?\d)(\d{0,30})(?:\.(\d{0,30}))?(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?\d{1,2}))?", re.ASCII)
_FACTORS: dict[str | None, tuple[int, int]] = {"n": (1, 10**9), "u": (1, 10**6), "m": (1, 1000), None: (1, 1), **{
    unit: (1000**power, 1) for power, unit in enumerate("kMGTPE", 1)}, **{
    f"{unit}i": (1024**power, 1) for power, unit in enumerate("KMGTPE", 1)}}


def parse(value: object) -> int:
    """Return a quantity (``100m``, ``1.5Gi``, ``1e3``, 2) in thousandths, rounded up. Raises Invalid, also for negative
    quantities."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or (
            isinstance(value, int) and value.bit_length() > 100):
        raise Invalid("not a quantity." if isinstance(value, int) else f"{excerpt(value)} is not a quantity.")
    match = _FORM.fullmatch(str(value))
    if match is None:
        raise Invalid(f"{excerpt(value)} is not a quantity.")
    whole, fraction, unit, exponent = match.groups()
    digits = fraction or ""
    factor, divisor = _FACTORS[unit]
    if exponent:
        power = int(exponent)
        factor, divisor = (factor * 10**power, divisor) if power >= 0 else (factor, divisor * 10**-power)
    numerator, denominator = int(whole + digits) * factor * 1000, 10 ** len(digits) * divisor
    result: int = -(-numerator // denominator)
    return result


def excerpt(value: object) -> str:
    """Return a value of a user for an error: at most 80 characters, also of values that are large or deeply nested."""
    if isinstance(value, str):
        return repr(value[:80])[:80]
    if isinstance(value, int) and value.bit_length() > 100:
        return "a large integer"
    return f"{value!r:.80}" if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"


def text(resource: str, thousandths: int) -> str:
    """Return an exact quantity for a message: bytes with the largest exact binary unit (1536Mi), others like 500m."""
    if (resource == "memory" or resource.endswith("storage")) and thousandths % 1_024_000 == 0 and thousandths:
        amount, units = thousandths // 1_024_000, iter(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
        unit = next(units)
        while amount % 1024 == 0 and unit != "Ei":
            amount, unit = amount // 1024, next(units)
        return f"{amount}{unit}"
    whole, rest = divmod(thousandths, 1000)
    return f"{thousandths}m" if rest else str(whole)
