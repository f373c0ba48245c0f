"""Operations on servers with sizes of 0: a root disk of 0 GiB is as large as the image; others do not exist."""

import pytest

from tests.functional.client import wait_for
from tests.functional.several_hosts import SECOND, refused, set_service

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


MOVES = [_round_trip, _resize_to_a_larger_disk, _migrate, _live_migrate, _shelve, _evacuate]
_LIVES = [*MOVES, _rescue, _rebuild]


def name_of(life):
    return life.__name__.strip("_")


def check_runs(pair, admin, server, has_disk=True):
    """Check that the guest and its disk exist on the server's host only, and that the guest starts with its disk."""
    host = pair.first if admin.server(server)["OS-EXT-SRV-ATTR:host"] != SECOND else pair.second
    wait_for(lambda: pair.where(server) == ([host.host], [host.host] if has_disk else []),
             reason="the guest and its disk exist on the server's host only")
    for verb in (["reboot", {"type": "HARD"}], ["os-stop"], ["os-start"]):
        admin.action(server, *verb)
        shown = admin.wait(server, "SHUTOFF" if verb[0] == "os-stop" else "ACTIVE")
    assert shown["OS-EXT-STS:power_state"] == 1


@pytest.mark.parametrize("life", _LIVES, ids=name_of)
def test_server_with_zero_disk_size_runs_after_each_operation(pair, admin, server, small, life):
    life(admin, server, small)
    check_runs(pair, admin, server)
    print(f"0 GiB: {name_of(life)}, hard reboot, stop, start")


def _flavor(admin, disk, ephemeral, swap):
    return admin.flavor(disk=disk, swap=swap, **{"OS-FLV-EXT-DATA:ephemeral": ephemeral})


def _gigabytes_used(admin):
    """Return the disk space that the claims of all servers and migrations use on all hosts."""
    return sum(node["local_gb_used"] for node in admin.get("/os-hypervisors/detail", version="2.87")["hypervisors"])


@pytest.mark.parametrize("end", ["confirmResize", "revertResize"])
@pytest.mark.parametrize(("before", "after"), [
    ((0, 0, 0), (0, 2, 1024)), ((0, 2, 1024), (0, 0, 0)), ((1, 2, 0), (1, 0, 1024)), ((1, 0, 1024), (1, 2, 0)),
    ((0, 0, 0), (1, 0, 0)), ((1, 0, 1024), (1, 0, 0))])
def test_resize_from_and_to_zero_changes_the_claimed_disk_space(pair, admin, before, after, end):
    """Flavors with these GiB of root and ephemeral disks and MiB of swap; 1024 MiB count as 1 GiB."""
    claimed = {sizes: sizes[0] + sizes[1] + sizes[2] // 1024 for sizes in (before, after)}
    server = admin.boot(_flavor(admin, *before), pair.image_id, availability_zone=f"nova:{pair.first.host}")
    admin.wait(server, "ACTIVE")
    wait_for(lambda: _gigabytes_used(admin) == claimed[before])
    new = _flavor(admin, *after)
    admin.action(server, "resize", {"flavorRef": new})
    admin.wait(server, "VERIFY_RESIZE")
    wait_for(lambda: _gigabytes_used(admin) == claimed[before] + claimed[after])
    admin.action(server, end)
    shown = admin.wait(server, "ACTIVE")["flavor"]
    kept = after if end == "confirmResize" else before
    assert (shown["disk"], shown["ephemeral"], shown["swap"]) == kept
    wait_for(lambda: _gigabytes_used(admin) == claimed[kept])
    check_runs(pair, admin, server)


def test_resize_to_a_flavor_with_a_zero_root_disk_is_refused(pair, admin, small):
    server = pair.boot()
    assert refused(lambda: admin.action(server, "resize", {"flavorRef": small[0]})) == (
        400, "Resize to zero disk flavor is not allowed.")
