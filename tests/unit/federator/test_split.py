"""Division of replicas: facts chapter 12, promise P6 (the shares add up, none is off by a whole replica, and scaling up
never stops a running replica)."""

from __future__ import annotations

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


@given(totals, weights_of)
def test_shares_are_those_of_the_quota_method(total: int, weights: list[int]) -> None:
    assert split(total, weights) == step_by_step(total, weights)


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


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(Invalid, match="negative"):
        split(-1, [1])
    with pytest.raises(Invalid, match="negative"):
        split(1, [-1])
