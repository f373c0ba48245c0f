"""The newest orders of instances: stored as long as they are needed, and no longer."""

from __future__ import annotations

import time

import pytest

from nova.compute.newest import NewestOrders, order_key
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepOrder
from tests.unit.conductor.books import flavor

LEASE = 30.0


class Clock:
    """The monotonic clock, which the test moves forward."""

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
    """``released``: issued by a conductor that says when; one of the previous release does not."""
    instance = Instance(uuid=uuid or new_uuid(), project_id="p1", user_id="u1", display_name="vm", hostname="vm",
                        flavor=flavor(), created_at=utcnow())
    action = Action(id=ident, uuid=new_uuid(), instance_uuid=instance.uuid, action="start", operation="start",
                    request_id="req-1", start_time=utcnow())
    return StepOrder(action=action, step="start", attempt=1, instance=instance, lease=lease,
                     issued_at=utcnow() if released else None)


def test_an_entry_is_removed_when_the_lease_of_its_order_has_ended(clock: Clock) -> None:
    newest, first = NewestOrders(limit=10), order()
    newest.store(first)
    clock.now += LEASE - 1
    newest.prune(busy=())
    assert newest.get(first.instance.uuid) == order_key(first)
    clock.now += 1
    newest.prune(busy=())
    assert newest.get(first.instance.uuid) is None
    assert len(newest) == 0


def test_the_number_of_entries_does_not_grow_with_the_number_of_orders_that_have_ended(clock: Clock) -> None:
    newest, sizes = NewestOrders(limit=10_000), []
    for _ in range(20):
        for _ in range(50):
            newest.store(order())
        clock.now += LEASE / 2
        newest.prune(busy=())
        sizes.append(len(newest))
    assert max(sizes) == 50


def test_an_instance_that_has_an_order_keeps_its_entry_however_long_it_takes(clock: Clock) -> None:
    newest, long, short = NewestOrders(limit=10), order(), order()
    newest.store(long)
    newest.store(short)
    clock.now += 100 * LEASE
    newest.prune(busy={long.instance.uuid})
    assert newest.get(long.instance.uuid) == order_key(long)
    assert newest.get(short.instance.uuid) is None
    newest.prune(busy=())
    assert len(newest) == 0


def test_a_newer_order_of_an_instance_renews_its_entry(clock: Clock) -> None:
    newest, first = NewestOrders(limit=10), order(1)
    newest.store(first)
    clock.now += LEASE - 1
    second = order(2, first.instance.uuid)
    newest.store(second)
    clock.now += LEASE - 1
    newest.prune(busy=())
    assert newest.get(first.instance.uuid) == order_key(second)


def test_orders_without_a_time_of_issue_are_bounded_by_their_number_alone(clock: Clock) -> None:
    newest = NewestOrders(limit=3)
    orders = [order(released=False) for _ in range(5)]
    for one in orders:
        newest.store(one)
    clock.now += 100 * LEASE
    newest.prune(busy=())
    assert [newest.get(one.instance.uuid) is None for one in orders] == [True, True, False, False, False]
