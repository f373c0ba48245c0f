"""Division of replicas among clusters by the quota method of Balinski and Young.

The shares add up, each differs from its ideal by less than one replica, and a larger total never takes a replica from
any cluster. (The largest remainder violates the last property.)
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from nova.common.errors import Invalid


def split(total: int, weights: Sequence[int], capacity: Sequence[int | None] | None = None,
          minimum: Sequence[int] | None = None) -> list[int]:
    """Return the share of each position; earlier positions win ties. A weight of 0 gets nothing.

    ``capacity``: upper bounds (None: unbounded); what does not fit is divided among the others, and what fits nowhere
    is left out of the sum. ``minimum``: lower bounds, given first. Raises Invalid for negative numbers.
    """
    if total < 0 or any(weight < 0 for weight in weights):
        raise Invalid("Replicas and weights must not be negative.")
    lowest = list(minimum) if minimum is not None else [0] * len(weights)
    highest = list(capacity) if capacity is not None else [None] * len(weights)
    fixed: dict[int, int] = {}
    while True:
        open_positions = [index for index in range(len(weights)) if index not in fixed and weights[index]]
        rest = max(0, total - sum(fixed.values()))
        shares = dict(zip(open_positions, _quota(rest, [weights[index] for index in open_positions]), strict=True))
        above = {index: high for index, share in shares.items()
                 if (high := highest[index]) is not None and share > high}
        below = {index: lowest[index] for index, share in shares.items() if share < lowest[index]}
        if not above and not below:
            result = {**fixed, **shares}
            return [result.get(index, 0) for index in range(len(weights))]
        fixed.update(above or below)


def _quota(total: int, weights: Sequence[int]) -> list[int]:
    """Return the shares of the quota method for positive weights: replicas are given one by one, the next one to the
    largest weight / (share + 1) among the positions that stay within their quota rounded up."""
    if not weights:
        return []
    whole = sum(weights)
    shares = [0] * len(weights)
    # A position whose quota at the present total allows no further replica waits until the total that allows it.
    waiting: list[tuple[int, int]] = [(1, index) for index in range(len(weights))]
    heapify(waiting)
    eligible: list[tuple[_Ratio, int]] = []
    for number in range(1, total + 1):
        while waiting and waiting[0][0] <= number:
            index = heappop(waiting)[1]
            heappush(eligible, (_Ratio(shares[index] + 1, weights[index]), index))
        index = heappop(eligible)[1]
        shares[index] += 1
        # Another replica is within the quota once shares * whole < number * weight.
        heappush(waiting, (shares[index] * whole // weights[index] + 1, index))
    return shares


class _Ratio(tuple[int, int]):
    """A fraction numerator/denominator that compares exactly, without floats."""

    __slots__ = ()

    def __new__(cls, numerator: int, denominator: int) -> "_Ratio":
        return super().__new__(cls, (numerator, denominator))

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Ratio)
        return self[0] * other[1] < other[0] * self[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ratio) and self[0] * other[1] == other[0] * self[1]

    def __hash__(self) -> int:
        return hash(self[0] / self[1])
