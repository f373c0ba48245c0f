"""Notifications are published at least once, in order, by a single conductor per queue, despite faults."""

import datetime
import functools
import threading
import time
import types

import pytest

from nova import exception
from nova.conductor.background.sender import Sender
from nova.conductor.feeds.outbox import Outbox
from nova.conf import CONF
from nova.db.maintenance import outbox
from nova.db.sql import clock
from nova.notifications.operation_events import PHASED_EVENTS, SINGLE_EVENTS
from nova.objects.accounts.notification import Notification
from nova.objects.base import new_uuid, utcnow
from nova.operations import REGISTRY
from nova.operations.framework.base import CONDUCTOR


class Broker:
    """A broker that accepts messages, and is unavailable once it has accepted ``left`` messages."""

    def __init__(self):
        self.got, self.left = [], None

    def send(self, told):
        if self.left == 0:
            raise exception.ServiceUnavailable("away")
        if self.left is not None:
            self.left -= 1
        self.got.append(told)

    @property
    def events(self):
        return [told.event_type for told in self.got]


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def sender(core, broker):
    return conductor(core, "one", broker)


def conductor(core, name, broker):
    return Sender(types.SimpleNamespace(db=core.db, name=name), broker.send)


def message(subject, event, **values):
    return Notification(message_id=new_uuid(), subject=subject, versioned=True, event_type=event, priority="INFO",
                        publisher_id="nova-api:here", payload={"of": subject}, created_at=utcnow(), **values)


def write(core, *told):
    core.db.write(lambda connection: outbox.add(connection, told))


def waiting(core):
    return core.db.read(outbox.waiting)


def test_notifications_are_sent_once_and_in_order(core, sender, broker):
    told = [message(f"server {number % 7}", f"event {number}") for number in range(200)]
    write(core, *told)
    sender.poll()
    sender.poll()
    assert waiting(core) == 0
    assert sorted(each.message_id for each in broker.got) == sorted(each.message_id for each in told)
    for server in range(7):
        events = [each.event_type for each in broker.got if each.payload == {"of": f"server {server}"}]
        assert events == [each.event_type for each in told if each.subject == f"server {server}"]


def test_rolled_back_transaction_writes_no_notification_and_wakes_no_sender(core, broker):
    woken, box = [], Outbox()
    box.wake = functools.partial(woken.append, True)

    def fail(connection):
        box.write(connection, [message("s", "e")])
        raise exception.InvalidInput(reason="no")

    with pytest.raises(exception.InvalidInput):
        core.db.write(fail)
    assert waiting(core) == 0
    assert not woken
    core.db.write(lambda connection: box.write(connection, [message("s", "e")]))
    assert waiting(core) == 1
    assert woken == [True]


def test_undelivered_notifications_are_retried_with_the_same_id(core, sender, broker, monkeypatch):
    told = [message("s", f"event {number}") for number in range(10)]
    write(core, *told)
    broker.left = 4
    sender.poll()
    assert waiting(core) == 6
    broker.left = None
    sender.poll()
    assert waiting(core) == 6  # an unavailable broker is not retried at once
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 3600)
    sender.poll()
    assert waiting(core) == 0
    assert [each.message_id for each in broker.got] == [each.message_id for each in told]


def test_outbox_queue_has_a_single_sender_at_a_time(core, sender, broker):
    partition, other = outbox.partition_of("s"), "another conductor"
    now = clock.now()
    assert core.db.write(lambda connection: outbox.take(
        connection, partition, other, now, clock.after(CONF.conductor.lease)))
    write(core, message("s", "held"), *(message(f"s{number}", "free") for number in range(50)
                                        if outbox.partition_of(f"s{number}") != partition))
    sender.poll()
    assert set(broker.events) == {"free"}
    assert waiting(core) == 1
    core.db.write(lambda connection: outbox.release(connection, partition, other, clock.now()))
    sender.poll()
    assert broker.events[-1] == "held"


def test_notification_sent_but_not_removed_is_sent_again_with_the_same_id(core, broker, monkeypatch):
    """The conductor is killed between sending and removal, and its lease expires."""
    write(core, message("s", "event"))
    dying = conductor(core, "dying", broker)

    def die(*_args, **_named):
        raise MemoryError

    with monkeypatch.context() as killed:
        killed.setattr(outbox, "sent", die)
        with pytest.raises(MemoryError):
            dying.poll()
    assert broker.events == ["event"]
    conductor(core, "next", broker).poll()
    assert broker.events == ["event"]  # the dead conductor still holds the lease of the queue
    partition = outbox.partition_of("s")
    core.db.write(lambda connection: outbox.release(connection, partition, "dying", clock.after(-1)))
    conductor(core, "next", broker).poll()
    assert [each.message_id for each in broker.got] == [broker.got[0].message_id] * 2
    assert waiting(core) == 0


def test_concurrent_senders_send_each_notification_once_and_in_order(core, broker):
    told = [message(f"server {number % 40}", f"{number:04d}") for number in range(400)]
    write(core, *told)
    senders = [threading.Thread(target=conductor(core, f"conductor {number}", broker).poll) for number in range(4)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    assert waiting(core) == 0
    assert sorted(broker.events) == [each.event_type for each in told]
    for server in range(40):
        events = [each.event_type for each in broker.got if each.payload == {"of": f"server {server}"}]
        assert events == sorted(events)


def test_outbox_lease_far_in_the_future_is_taken_over(core, sender, broker):
    partition = outbox.partition_of("s")
    core.db.write(lambda connection: outbox.take(connection, partition, "gone", clock.now(), clock.after(86400)))
    write(core, message("s", "event"))
    sender.poll()
    assert broker.events == ["event"]


def test_oldest_notifications_are_dropped_by_age_and_by_limit_with_a_warning(core, sender, broker, settings, caplog):
    broker.left = 0
    settings("max_waiting", 1000, "notifications")
    old = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    ancient = [message("s", "ancient") for _each in range(3)]
    for each in ancient:
        each.created_at = old
    write(core, *ancient, *(message("s", f"event {number}") for number in range(1700)))
    sender.poll()
    assert waiting(core) == 1000
    left = core.db.read(lambda connection: outbox.page(connection, outbox.partition_of("s"), 1))
    assert left[0].event_type == "event 700"
    assert any("Dropped 703 notifications" in record.getMessage() for record in caplog.records)


# --- events of phases ---------------------------------------------------------------------------------------
def test_notification_phases_refer_to_existing_operations_and_steps():
    for name, parts in [*PHASED_EVENTS.items(), *SINGLE_EVENTS.items()]:
        operation = REGISTRY[name]
        for part in parts:
            for step in filter(None, (getattr(part, "first", ""), getattr(part, "last", ""),
                                      getattr(part, "after", ""))):
                operation.step_named(step)
            fields = set(operation.data_type.__struct_fields__)
            assert {part.when, getattr(part, "at", "")} - {""} <= fields, (name, part)


def test_notification_phase_never_splits_an_order_to_a_host():
    """A host reports the end of an order, not of each step."""
    for name, parts in PHASED_EVENTS.items():
        steps = REGISTRY[name].steps
        order = {step.name: index for index, step in enumerate(steps)}
        for part in parts:
            first, last = order[part.first], order[part.last] if part.last else len(steps) - 1
            for inside, outside in ((first, first - 1), (last, last + 1)):
                if 0 <= outside < len(steps) and steps[inside].place != CONDUCTOR:
                    apart = steps[outside].place != steps[inside].place
                    exclusive = steps[outside].when and steps[inside].when and steps[outside].when != steps[inside].when
                    assert apart or exclusive, (name, part.event)


def test_every_operation_has_notifications_or_is_listed_as_silent():
    silent = {"reset_state", "change_password", "resume_on_boot", "create_volume_image", "volume_snapshot_create",
              "volume_snapshot_delete", "extend_volume"}
    assert set(REGISTRY) - set(PHASED_EVENTS) == silent


def test_message_that_is_never_accepted_blocks_only_its_own_queue(core, sender, broker):
    """A broker refuses a message that is too large, for example."""
    partition, take = outbox.partition_of("s"), broker.send

    def send(told):
        if told.event_type == "poison":
            raise exception.ServiceUnavailable("it is too large")
        take(told)

    sender._send = send
    others = [f"s{number}" for number in range(50) if outbox.partition_of(f"s{number}") != partition]
    write(core, message("s", "poison"), message("s", "behind it"), *(message(other, "free") for other in others))
    sender.poll()
    assert broker.events == ["free"] * len(others)
    assert waiting(core) == 2


def test_unavailable_broker_is_tried_at_most_twice(core, sender, broker):
    asked = []

    def send(told):
        asked.append(told)
        raise exception.ServiceUnavailable("away")

    sender._send = send
    write(core, *(message(f"s{number}", "free") for number in range(50)))
    sender.poll()
    assert len(asked) == 2


def test_unavailable_broker_is_tried_however_many_attempts_have_failed(core, sender, broker, monkeypatch):
    """The pause between two attempts must be a number: 2 to the power of 1,024 is none."""
    write(core, message("s", "kept"))
    broker.left = 0
    moment = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    for failures in (0, 1020):
        sender._failures = failures
        for _attempt in range(10):
            sender.poll()
            moment += 31
    assert sender._failures == 1030
    broker.left = None
    sender.poll()
    assert len(broker.got) == 1
