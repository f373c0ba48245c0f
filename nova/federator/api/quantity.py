"""Quantities of the Kubernetes API, as integers in thousandths so that sums are exact."""

import re

from nova.common.errors import Invalid

_FORM = re.compile(
    r"\+?(\d{1,30})(?:\.(\d{0,30}))?(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?\d{1,2}))?", re.ASCII)
_FACTORS: dict[str | None, tuple[int, int]] = {"n": (1, 10**9), "u": (1, 10**6), "m": (1, 1000), None: (1, 1), **{
    unit: (1000**power, 1) for power, unit in enumerate("kMGTPE", 1)}, **{
    f"{unit}i": (1024**power, 1) for power, unit in enumerate("KMGTPE", 1)}}


def parse(value: object) -> int:
    """Return a quantity (``100m``, ``1.5Gi``, ``1e3``, 2) in thousandths, rounded up. Raises Invalid, also for negative
    quantities."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Invalid(f"{value!r:.80} is not a quantity.")
    match = _FORM.fullmatch(str(value))
    if match is None:
        raise Invalid(f"{value!r:.80} is not a quantity.")
    whole, fraction, unit, exponent = match.groups()
    digits = fraction or ""
    factor, divisor = _FACTORS[unit]
    if exponent:
        power = int(exponent)
        factor, divisor = (factor * 10**power, divisor) if power >= 0 else (factor, divisor * 10**-power)
    numerator, denominator = int(whole + digits) * factor * 1000, 10 ** len(digits) * divisor
    result: int = -(-numerator // denominator)
    return result


def text(resource: str, thousandths: int) -> str:
    """Return a quantity for a message: memory in Mi, others with at most three decimals (500m, 2)."""
    if resource == "memory" or resource.endswith("storage"):
        return f"{-(-thousandths // (1000 << 20))}Mi"
    whole, rest = divmod(thousandths, 1000)
    return f"{thousandths}m" if rest else str(whole)
