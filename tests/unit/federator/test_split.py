"""Division of replicas: facts chapter 12, promise P6 (the shares add up, none is off by a whole replica, and scaling up
never stops a running replica)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.common.errors import Invalid
from nova.federator.scheduling.split import split

weights_of = st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any)
totals = st.integers(0, 80)


def step_by_step(total: int, weights: list[int]) -> list[int]:
    """Return the quota method as it is defined: one replica after another."""
    whole, shares = sum(weights), [0] * len(weights)
    for number in range(1, total + 1):
        eligible = [index for index, weight in enumerate(weights) if shares[index] * whole < number * weight]
        best = eligible[0]
        for index in eligible[1:]:
            if weights[index] * (shares[best] + 1) > weights[best] * (shares[index] + 1):
                best = index
        shares[best] += 1
    return shares


def limited(total: int, weights: list[int], limits: list[int], shares: list[int]) -> list[int]:
    """Continue the quota method step by step, among the positions below their limits."""
    while sum(shares) < total:
        unfilled = [index for index, weight in enumerate(weights) if weight and shares[index] < limits[index]]
        if not unfilled:
            break
        number, whole = sum(shares[index] for index in unfilled) + 1, sum(weights[index] for index in unfilled)
        eligible = [index for index in unfilled if shares[index] * whole < number * weights[index]]
        shares[max(eligible, key=lambda index: (Fraction(weights[index], shares[index] + 1), -index))] += 1
    return shares


@given(st.integers(0, 400), weights_of)
def test_shares_are_those_of_the_quota_method(total: int, weights: list[int]) -> None:
    assert split(total, weights) == step_by_step(total, weights)


@given(totals, weights_of, st.data())
def test_shares_within_limits_are_those_of_the_quota_method(total: int, weights: list[int],
                                                            data: st.DataObject) -> None:
    count = len(weights)
    highest = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    lowest = [min(low, high, weight and high) for low, high, weight in zip(data.draw(
        st.lists(st.integers(0, 6), min_size=count, max_size=count)), highest, weights, strict=True)]
    expected = limited(total, weights, highest, limited(min(total, sum(lowest)), weights, lowest, [0] * count))
    shares = split(total, weights, highest, lowest)
    assert shares == expected
    assert all(new >= old for new, old in zip(split(total + 1, weights, highest, lowest), shares, strict=True)), (
        "scaling up takes a replica away")


@given(totals, weights_of, st.data())
def test_ties_are_won_by_the_present_holders(total: int, weights: list[int], data: st.DataObject) -> None:
    """Minimal movement: a result that was reached with other ties stays as it is, and grows and shrinks from there."""
    count = len(weights)
    history = split(total, weights, current=data.draw(st.lists(st.integers(0, 30), min_size=count, max_size=count)))
    assert split(total, weights, current=history) == history
    for change in (-3, -1, 1, 4):
        shares = split(max(0, total + change), weights, current=history)
        pairs = list(zip(shares, history, strict=True))
        assert all(new >= old for new, old in pairs) if change > 0 else all(new <= old for new, old in pairs)


def test_large_totals_are_divided_in_whole_periods() -> None:
    """A billion billion replicas are not counted one by one, with and without limits."""
    assert split(10**18, [70, 30]) == [7 * 10**17, 3 * 10**17]
    assert split(10**18, [1, 1, 1], [5, None, None]) == [5, (10**18 - 5) // 2 + 1, (10**18 - 5) // 2]
    assert split(10**18, [3, 2, 1], [None, None, 10**17 + 1], [0, 4, 0])[2] == 10**17 + 1


@given(totals, weights_of)
def test_shares_add_up_and_no_share_is_a_whole_replica_off(total: int, weights: list[int]) -> None:
    shares, whole = split(total, weights), sum(weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * whole - total * weight) < whole


@given(totals, weights_of)
def test_scaling_up_by_one_adds_one_replica_to_one_cluster(total: int, weights: list[int]) -> None:
    before, after = split(total, weights), split(total + 1, weights)
    assert sorted(new - old for new, old in zip(after, before, strict=True)) == [0] * (len(weights) - 1) + [1]


def test_the_largest_remainder_would_take_a_replica_away() -> None:
    """Weights 5:3:1 at 4 and 5 replicas: the largest remainder gives 2,1,1 and 3,2,0."""
    assert (split(4, [5, 3, 1]), split(5, [5, 3, 1])) == ([3, 1, 0], [3, 2, 0])


@pytest.mark.parametrize(("total", "weights", "shares"), [
    (10, [1, 1], [5, 5]), (10, [30, 30, 40], [3, 3, 4]), (5, [70, 30], [4, 1]), (2, [1, 1], [1, 1]),
    (1, [1, 1, 1], [1, 0, 0]), (3, [0, 1], [0, 3]), (0, [1], [0]), (7, [0, 0], [0, 0])])
def test_examples_of_the_documentation(total: int, weights: list[int], shares: list[int]) -> None:
    """Facts chapter 4: 10 evenly is 5+5, 10 at 30/30/40 is 3+3+4, and 5 at 70/30 loses no replica."""
    assert split(total, weights) == shares


@given(totals, weights_of, st.data())
def test_limits_hold_and_what_fits_is_placed(total: int, weights: list[int], data: st.DataObject) -> None:
    limits = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 30)), min_size=len(weights), max_size=len(weights)))
    shares = split(total, weights, limits)
    for share, weight, limit in zip(shares, weights, limits, strict=True):
        assert share <= (limit if limit is not None else total)
        assert share == 0 or weight
    bounded = [limit for limit, weight in zip(limits, weights, strict=True) if weight]
    assert sum(shares) == (total if None in bounded else min(total, sum(limit or 0 for limit in bounded)))


def test_a_minimum_is_given_first() -> None:
    assert split(10, [1, 1, 1], minimum=[0, 6, 0]) == [2, 6, 2]
    assert split(1, [1, 1], minimum=[1, 1]) == [1, 0], "minima never make the sum too large"
    assert split(5, [1, 1], [2, None], [4, 0]) == [2, 3], "the capacity bounds the minimum"


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(Invalid, match="negative"):
        split(-1, [1])
    with pytest.raises(Invalid, match="negative"):
        split(1, [-1])
    with pytest.raises(Invalid, match="negative"):
        split(1, [1], [-1])
    with pytest.raises(Invalid, match="differ in number"):
        split(1, [1, 2], [1])
    with pytest.raises(Invalid, match="larger"):
        split(1, [1 << 31])
