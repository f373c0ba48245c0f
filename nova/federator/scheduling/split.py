"""Division of replicas among clusters by the quota method of Balinski and Young.

The shares add up, each differs from its ideal by less than one replica, and a larger total never takes a replica from
any cluster. (The largest remainder violates the last property.) Limits keep the first and the last property.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import gcd

from nova.common.errors import Invalid

_LARGEST_WEIGHT = (1 << 31) - 1
_SCALE = 64  # bits; products of two weights are smaller, so scaled fractions compare exactly


def split(total: int, weights: Sequence[int], capacity: Sequence[int | None] | None = None,
          minimum: Sequence[int] | None = None, current: Sequence[int] | None = None) -> list[int]:
    """Return the share of each position. A weight of 0 gets nothing.

    ``capacity``: upper bounds (None: unbounded); replicas beyond a bound are divided among the other positions, and
    replicas that fit nowhere are left out. ``minimum``: lower bounds, met first, as far as total and capacity allow.
    ``current``: present shares; ties are won by positions that hold the replica in question, then by earlier positions.
    Raises Invalid for negative numbers and weights of more than 31 bits.
    """
    count = len(weights)
    limits = list(capacity) if capacity is not None else [None] * count
    lowest = list(minimum) if minimum is not None else [0] * count
    holding = list(current) if current is not None else [0] * count
    if {len(limits), len(lowest), len(holding)} != {count}:
        raise Invalid("Weights, capacities, minima and present shares differ in number.")
    if total < 0 or any(number is not None and number < 0 for number in (*weights, *limits, *lowest, *holding)):
        raise Invalid("Replicas, weights and limits must not be negative.")
    if any(weight > _LARGEST_WEIGHT for weight in weights):
        raise Invalid(f"A weight is larger than {_LARGEST_WEIGHT}.")
    highest = [(total if limit is None else min(total, limit)) if weight else 0
               for weight, limit in zip(weights, limits, strict=True)]
    lowest = [min(low, high) for low, high in zip(lowest, highest, strict=True)]
    whole = sum(weights) or 1
    order = sorted(range(count), key=lambda index: (holding[index] <= total * weights[index] // whole, index))
    ranks = [0] * count
    for rank, index in enumerate(order):
        ranks[index] = rank
    method = _QuotaMethod(weights, ranks)
    method.advance(min(total, sum(lowest)), lowest)
    method.advance(total, highest)
    return method.shares


class _QuotaMethod:
    """The quota method, continued from any state. A replica goes to the position with the largest weight / (share + 1)
    that stays within its quota, rounded up: its part, by weight, of the replicas that full positions leave."""

    def __init__(self, weights: Sequence[int], ranks: Sequence[int]) -> None:
        self.weights, self.ranks = weights, ranks
        self.positions = [index for _rank, index in sorted(zip(ranks, range(len(ranks)), strict=True))]
        self.shares = [0] * len(weights)

    def advance(self, total: int, limits: Sequence[int]) -> None:
        """Give replicas until their sum is ``total``, or all positions have reached their limits."""
        while rest := total - sum(self.shares):
            if not (unfilled := [index for index, weight in enumerate(self.weights)
                                 if weight and self.shares[index] < limits[index]]):
                return
            self._fill(unfilled, rest, limits)

    def _fill(self, positions: Sequence[int], rest: int, limits: Sequence[int]) -> None:
        """Give up to ``rest`` replicas to positions, until the first of them reaches its limit.

        The method repeats itself after ``period`` replicas, each of which adds the weight of a position to its share.
        Whole periods are added at once where the state before a period equals the state after it.
        """
        shares, divisor = self.shares, gcd(*(self.weights[index] for index in positions))
        weights = {index: self.weights[index] // divisor for index in positions}
        period, given = sum(weights.values()), sum(shares[index] for index in positions)
        waiting, eligible = dict[int, list[int]](), list[tuple[int, int]]()
        for index in positions:
            waiting.setdefault(max(given + 1, shares[index] * period // weights[index] + 1), []).append(index)
        before: dict[int, int] | None = None
        steps, repeating = 0, not any(shares[index] for index in positions)
        while rest:
            if repeating or steps == period:
                after = {index: shares[index] for index in positions}
                if repeating or (before is not None and all(
                        after[index] - before[index] == weights[index] for index in positions)):
                    periods = min(rest // period, *((limits[index] - 1 - shares[index]) // weights[index]
                                                    for index in positions))
                    for index in positions:
                        shares[index] += periods * weights[index]
                    if periods:
                        moved = periods * period
                        given, rest = given + moved, rest - moved
                        waiting = {number + moved: indexes for number, indexes in waiting.items()}
                        eligible = [(self._urgency(index, weights[index]), self.ranks[index])
                                    for index in (self.positions[rank] for _key, rank in eligible)]
                        heapify(eligible)
                before, steps, repeating = after, 0, False
                continue
            given += 1
            for index in waiting.pop(given, ()):
                heappush(eligible, (self._urgency(index, weights[index]), self.ranks[index]))
            index = self.positions[heappop(eligible)[1]]
            shares[index] += 1
            steps, rest = steps + 1, rest - 1
            if shares[index] == limits[index]:
                return
            # Another replica is within the quota once shares * period < number * weight.
            waiting.setdefault(max(given + 1, shares[index] * period // weights[index] + 1), []).append(index)

    def _urgency(self, index: int, weight: int) -> int:
        """Return (share + 1) / weight as an integer that compares like the fraction."""
        return (self.shares[index] + 1 << _SCALE) // weight
