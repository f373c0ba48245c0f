"""Shutdown timeout of a guest: the timeout of its image, or else of its host."""

import pytest

from nova.conf import CONF
from tests.functional.several_hosts import refused

# Action -> (kind of its argument, driver method that receives the timeout, resulting status).
_ACTIONS = {
    "os-stop": (None, "power.off", "SHUTOFF"),
    "shelve": (None, "power.off", "SHELVED"),
    "rescue": (None, "rescue.begin", "RESCUE"),
    "rebuild": ("image", "disks.replace", "ACTIVE"),
    "resize": ("flavor", "cold_migration.open_disks", "VERIFY_RESIZE"),
    "migrate": (None, "cold_migration.open_disks", "VERIFY_RESIZE"),
}


@pytest.fixture
def timeouts(pair, monkeypatch):
    """Return the timeouts passed to the fake driver, by method; the driver does not wait."""
    given = {}
    driver = pair.first.machine.driver
    for verb in ("power.off", "power.reboot", "rescue.begin", "disks.replace", "cold_migration.open_disks"):
        role, method = verb.split(".")
        real = getattr(getattr(driver, role), method)

        def watched(*args, _verb=verb, _real=real, **named):
            given[_verb] = named.get("timeout", args[-1])
            return _real(*args, **named)

        monkeypatch.setattr(getattr(driver, role), method, watched)
    return given


@pytest.mark.parametrize(("action", "value", "seconds"), [
    *((action, "300", 300) for action in _ACTIONS), ("os-stop", "0", 0), ("os-stop", None, 60),
    ("os-stop", "999999999999999999999999", 3300)])
def test_shutdown_timeout_comes_from_the_image_or_the_host(pair, admin, new_image, timeouts, action, value, seconds):
    assert CONF.shutdown_timeout == 60
    image = new_image(**({"os_shutdown_timeout": value} if value is not None else {}))
    server = admin.boot(pair.flavor, image, availability_zone=f"nova:{pair.first.host}")
    admin.wait(server, "ACTIVE")
    kind, verb, status = _ACTIONS[action]
    argument = {"image": {"imageRef": image}, "flavor": {"flavorRef": admin.flavor(vcpus=2)}, None: None}[kind]
    admin.action(server, action, argument)
    admin.wait(server, status, "SHELVED_OFFLOADED") if action == "shelve" else admin.wait(server, status)
    assert timeouts[verb] == seconds


@pytest.mark.parametrize("value", ["soon", "-1", "1.5", "", "٣٠"])
def test_non_numeric_shutdown_timeout_is_refused(admin, new_image, flavor, value):
    code, message = refused(lambda: admin.boot(flavor, new_image(os_shutdown_timeout=value)))
    assert (code, "os_shutdown_timeout" in message) == (400, True)


@pytest.mark.parametrize(("value", "seconds"), [("0", 0), ("300", 300), (None, None)])
def test_soft_reboot_timeout_comes_from_the_image_or_the_hypervisor(pair, admin, new_image, timeouts, value, seconds):
    image = new_image(**({"os_shutdown_timeout": value} if value is not None else {}))
    server = admin.boot(pair.flavor, image, availability_zone=f"nova:{pair.first.host}")
    admin.wait(server, "ACTIVE")
    admin.action(server, "reboot", {"type": "SOFT"})
    admin.wait(server, "ACTIVE")
    assert timeouts["power.reboot"] == seconds
