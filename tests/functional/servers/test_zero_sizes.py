"""Operations on servers with a root disk size of 0 GiB (the disk is as large as the image)."""

import pytest

from tests.functional.client import wait_for
from tests.functional.several_hosts import SECOND, set_service

_LIVE = {"host": None, "block_migration": "auto"}


@pytest.fixture
def small(admin):
    """Return a flavor with a root disk size of 0, and the same flavor with two vCPUs."""
    return admin.flavor(disk=0), admin.flavor(disk=0, vcpus=2)


@pytest.fixture
def server(pair, admin, small):
    uuid = admin.boot(small[0], pair.image_id, availability_zone=f"nova:{pair.first.host}")
    admin.wait(uuid, "ACTIVE")
    return uuid


def _resize(admin, server, flavor, end):
    admin.action(server, "resize", {"flavorRef": flavor})
    admin.wait(server, "VERIFY_RESIZE")
    admin.action(server, end)
    admin.wait(server, "ACTIVE")


def _round_trip(admin, server, small):
    """Resize and confirm, then resize and revert with the disks of the first resize."""
    _resize(admin, server, small[1], "confirmResize")
    _resize(admin, server, small[0], "revertResize")


def _resize_to_a_larger_disk(admin, server, _small):
    _resize(admin, server, admin.flavor(disk=1), "confirmResize")


def _migrate(admin, server, _small):
    for end in ("confirmResize", "revertResize", "confirmResize"):
        admin.action(server, "migrate")
        admin.wait(server, "VERIFY_RESIZE")
        admin.action(server, end)
        admin.wait(server, "ACTIVE")


def _live_migrate(admin, server, _small):
    for _ in range(2):
        admin.action(server, "os-migrateLive", _LIVE)
        admin.wait(server, "ACTIVE")
    _migrate(admin, server, _small)


def _shelve(admin, server, _small):
    admin.action(server, "shelve")
    if admin.wait(server, "SHELVED", "SHELVED_OFFLOADED")["status"] == "SHELVED":
        admin.action(server, "shelveOffload")
        admin.wait(server, "SHELVED_OFFLOADED")
    admin.action(server, "unshelve")
    admin.wait(server, "ACTIVE")


def _rescue(admin, server, _small):
    admin.action(server, "rescue")
    admin.wait(server, "RESCUE")
    admin.action(server, "unrescue")
    admin.wait(server, "ACTIVE")


def _rebuild(admin, server, _small):
    admin.action(server, "rebuild", {"imageRef": admin.server(server)["image"]["id"]})
    admin.wait(server, "ACTIVE")


def _evacuate(admin, server, _small):
    host = admin.server(server)["OS-EXT-SRV-ATTR:host"]
    set_service(admin, host, forced_down=True)
    admin.action(server, "evacuate", {}, version="2.94")
    admin.wait(server, "ACTIVE")
    set_service(admin, host, forced_down=False)


_LIVES = [_round_trip, _resize_to_a_larger_disk, _migrate, _live_migrate, _shelve, _rescue, _rebuild, _evacuate]


@pytest.mark.parametrize("life", _LIVES, ids=[life.__name__.strip("_") for life in _LIVES])
def test_server_with_zero_disk_size_runs_after_each_operation(pair, admin, server, small, life):
    life(admin, server, small)
    host = pair.first if admin.server(server)["OS-EXT-SRV-ATTR:host"] != SECOND else pair.second
    wait_for(lambda: pair.where(server) == ([host.host], [host.host]),
             reason="the guest and its disk exist on the server's host only")
    # Starting the guest requires its disk.
    for verb in (["reboot", {"type": "HARD"}], ["os-stop"], ["os-start"]):
        admin.action(server, *verb)
        shown = admin.wait(server, "SHUTOFF" if verb[0] == "os-stop" else "ACTIVE")
    assert shown["OS-EXT-STS:power_state"] == 1
    print(f"0 GiB: {life.__name__.strip('_')}, hard reboot, stop, start")
