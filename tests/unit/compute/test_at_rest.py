"""Guests that are at rest do not stay so when whoever wanted it is gone."""

from __future__ import annotations

import time

import pytest

from nova import conf
from nova.compute.at_rest import AtRest
from nova.objects.base import new_uuid, utcnow
from nova.objects.instance import Instance
from nova.virt.driver import Disks
from nova.virt.fake import FakeDriver
from tests.unit.conductor.books import flavor

SERVER = Instance(uuid=new_uuid(), project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
                  flavor=flavor())


@pytest.fixture
def driver() -> FakeDriver:
    conf.register()
    made = FakeDriver("h")
    made.spawn(SERVER, Disks())
    return made


def settled(driver: FakeDriver) -> bool:
    """Whether no guest is at rest, soon."""
    end = time.monotonic() + 10
    while driver.at_rest and time.monotonic() < end:
        time.sleep(0.01)
    return not driver.at_rest


def test_a_guest_goes_on_though_nobody_says_so(driver: FakeDriver) -> None:
    AtRest(driver, longest=0.05).begin(SERVER)
    assert settled(driver)


def test_who_is_at_rest_again_has_all_of_its_time(driver: FakeDriver) -> None:
    rests = AtRest(driver, longest=0.2)
    rests.begin(SERVER)
    rests.end(SERVER)
    time.sleep(0.15)
    rests.begin(SERVER)
    time.sleep(0.1)
    assert SERVER.uuid in driver.at_rest
    assert settled(driver)
