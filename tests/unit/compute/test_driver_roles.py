"""Roles of a hypervisor driver: the fence around the roles, and errors for missing roles or methods."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

import pytest

from nova import conf, exception
from nova.compute.job import Job, Superseded, fenced_roles
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import GuestDriver
from nova.virt.driver import Driver
from nova.virt.fake import roles as fake_roles
from nova.virt.fake.driver import FakeDriver

ROLES = [role.name for role in dataclasses.fields(GuestDriver)]


@pytest.fixture
def driver() -> FakeDriver:
    conf.register()
    return FakeDriver("h1")


@pytest.mark.parametrize("role", ROLES)
def test_superseded_order_cannot_call_any_driver_role(driver: FakeDriver, role: str) -> None:
    order: Any = types.SimpleNamespace(instance=types.SimpleNamespace(uuid="some"))
    job = Job(None, order, 60.0, lambda _job: None)  # type: ignore[arg-type]
    fenced = getattr(fenced_roles(driver, job), role)
    job.supersede()
    methods = [name for name, _method in inspect.getmembers(getattr(guest_driver, type(getattr(driver, role)).__name__),
                                                            inspect.isfunction) if not name.startswith("_")]
    assert methods
    for method in methods:
        with pytest.raises(Superseded):
            getattr(fenced, method)()


class Third(Driver):
    """A driver of another vendor, with ``roles``."""

    def __init__(self, host: str, **roles: Any) -> None:
        super().__init__(host=host, **roles)

    def start(self, on_event: Any) -> None: ...

    def nodes(self) -> list[Any]:
        return []


def test_driver_without_a_required_role_is_refused_by_name(driver: FakeDriver) -> None:
    with pytest.raises(TypeError, match="'power'"):
        Third("h", guests=driver.guests, disks=driver.disks, consoles=driver.consoles)


def test_role_without_a_required_method_is_refused_by_name() -> None:
    class Careless(guest_driver.Consoles):
        """Consoles without a log."""

    with pytest.raises(TypeError, match="output"):
        Careless()  # type: ignore[abstract]


def test_missing_optional_roles_raise_not_implemented(driver: FakeDriver) -> None:
    third = Third("h", guests=driver.guests, disks=driver.disks, power=driver.power, consoles=driver.consoles)
    assert isinstance(third.power, fake_roles.Power)
    with pytest.raises(exception.NotImplementedHere, match="Unable to attach volumes"):
        third.volumes.attach(None, None)  # type: ignore[arg-type]
    with pytest.raises(exception.NotImplementedHere, match="Unable to migrate running servers"):
        third.live_target.finish(None)  # type: ignore[arg-type]
