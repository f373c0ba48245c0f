"""Quiesced guests are unquiesced after a timeout if the requester disappears."""

from __future__ import annotations

import time

import pytest

from nova import conf, exception
from nova.compute.quiesce import QuiescedGuests
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.fake.driver import FakeDriver
from tests.unit.conductor.books import flavor

SERVER = Instance(uuid=new_uuid(), project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
                  flavor=flavor())


@pytest.fixture
def driver() -> FakeDriver:
    conf.register()
    made = FakeDriver("h")
    made.guests.spawn(SERVER, BootFiles())
    return made


def settled(driver: FakeDriver) -> bool:
    """Return True if no guest is quiesced after a while."""
    end = time.monotonic() + 10
    while driver.state.quiesced and time.monotonic() < end:
        time.sleep(0.01)
    return not driver.state.quiesced


def test_quiesced_guest_is_unquiesced_after_the_timeout(driver: FakeDriver) -> None:
    QuiescedGuests(driver.snapshots, timeout=0.05).begin(SERVER)
    assert settled(driver)


def test_repeated_quiesce_has_the_full_timeout(driver: FakeDriver) -> None:
    rests = QuiescedGuests(driver.snapshots, timeout=0.2)
    rests.begin(SERVER)
    rests.end(SERVER)
    time.sleep(0.15)
    rests.begin(SERVER)
    time.sleep(0.1)
    assert SERVER.uuid in driver.state.quiesced
    assert settled(driver)


def test_failed_unquiesce_is_retried(driver: FakeDriver) -> None:
    driver.behaviour.failure["unquiesce"] = 1.0
    rests = QuiescedGuests(driver.snapshots, timeout=0.05)
    rests.begin(SERVER)
    with pytest.raises(exception.NovaException):
        rests.end(SERVER)
    time.sleep(0.15)
    assert SERVER.uuid in driver.state.quiesced
    driver.behaviour.failure.clear()
    assert settled(driver)


def test_guest_quiesced_after_the_timeout_is_unquiesced(driver: FakeDriver) -> None:
    driver.behaviour.latency["quiesce"] = 0.3
    QuiescedGuests(driver.snapshots, timeout=0.05).begin(SERVER)
    assert settled(driver)


def test_guest_is_unquiesced_after_a_failed_quiesce(driver: FakeDriver) -> None:
    driver.state.without_agent.add(SERVER.uuid)
    with pytest.raises(exception.InstanceQuiesceFailed):
        QuiescedGuests(driver.snapshots, timeout=0.05).begin(SERVER)
    driver.state.quiesced.add(SERVER.uuid)
    assert settled(driver)


def test_shutdown_unquiesces_guests_and_refuses_new_quiesce(driver: FakeDriver) -> None:
    rests = QuiescedGuests(driver.snapshots)
    rests.begin(SERVER)
    rests.stop()
    assert driver.state.quiesced == set()
    with pytest.raises(exception.InstanceQuiesceFailed):  # The request arrived before the end of the process.
        rests.begin(SERVER)
    assert driver.state.quiesced == set()
