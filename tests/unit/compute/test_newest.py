"""The newest orders of instances: stored until their lease ends."""

from __future__ import annotations

import time

import pytest

from nova.compute.job import NewestOrders, order_key
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepOrder
from tests.unit.conductor.books import flavor

LEASE = 30.0


class Clock:
    """A fake monotonic clock, advanced by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


def order(ident: int = 1, uuid: str = "", lease: float = LEASE, released: bool = True) -> StepOrder:
    """Return an order; without ``released`` it lacks the time of issue, as in the previous release."""
    instance = Instance(uuid=uuid or new_uuid(), project_id="p1", user_id="u1", display_name="vm", hostname="vm",
                        flavor=flavor(), created_at=utcnow())
    action = Action(id=ident, uuid=new_uuid(), instance_uuid=instance.uuid, action="start", operation="start",
                    request_id="req-1", start_time=utcnow())
    return StepOrder(action=action, step="start", attempt=1, instance=instance, lease=lease,
                     issued_at=utcnow() if released else None)


def test_newest_order_is_removed_after_its_lease(clock: Clock) -> None:
    newest, first = NewestOrders(limit=10), order()
    newest.store(first)
    clock.now += LEASE - 1
    newest.prune(busy=())
    assert newest.get(first.instance.uuid) == order_key(first)
    clock.now += 1
    newest.prune(busy=())
    assert newest.get(first.instance.uuid) is None
    assert len(newest) == 0


def test_number_of_newest_orders_does_not_grow_with_ended_orders(clock: Clock) -> None:
    newest, sizes = NewestOrders(limit=10_000), []
    for _ in range(20):
        for _ in range(50):
            newest.store(order())
        clock.now += LEASE / 2
        newest.prune(busy=())
        sizes.append(len(newest))
    assert max(sizes) == 50


def test_newest_order_of_a_busy_instance_outlives_its_lease(clock: Clock) -> None:
    newest, long, short = NewestOrders(limit=10), order(), order()
    newest.store(long)
    newest.store(short)
    clock.now += 100 * LEASE
    newest.prune(busy={long.instance.uuid})
    assert newest.get(long.instance.uuid) == order_key(long)
    assert newest.get(short.instance.uuid) is None
    newest.prune(busy=())
    assert len(newest) == 0


def test_newer_order_renews_the_entry_of_the_instance(clock: Clock) -> None:
    newest, first = NewestOrders(limit=10), order(1)
    newest.store(first)
    clock.now += LEASE - 1
    second = order(2, first.instance.uuid)
    newest.store(second)
    clock.now += LEASE - 1
    newest.prune(busy=())
    assert newest.get(first.instance.uuid) == order_key(second)


def test_orders_without_issue_time_are_limited_by_number(clock: Clock) -> None:
    newest = NewestOrders(limit=3)
    orders = [order(released=False) for _ in range(5)]
    for one in orders:
        newest.store(one)
    clock.now += 100 * LEASE
    newest.prune(busy=())
    assert [newest.get(one.instance.uuid) is None for one in orders] == [True, True, False, False, False]
