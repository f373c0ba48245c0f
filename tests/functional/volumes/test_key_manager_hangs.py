# ruff: noqa: F811 - fixtures of other modules
"""A hanging key manager and requests that do not need it."""

import threading

import pytest

from nova.conf import CONF
from tests.cinder_service import Snapshot
from tests.functional.volumes.test_cinder import MEMBER, attach, boot, cinder, outside, server, wait_status  # noqa: F401
from tests.functional.volumes.test_cinder_encrypted import from_snapshot, given, keys, nothing_is_said, volume  # noqa: F401
from tests.key_manager import Keys, is_silent


@pytest.fixture
def released():
    """Return an event that makes the hanging key manager fail."""
    event = threading.Event()
    yield event
    event.set()


def test_hanging_key_manager_does_not_block_plain_volumes(admin, member, flavor, server, cinder, volume, released):
    """Check builds with new encrypted volumes, which wait for the key manager inside the Cinder queue."""
    made, plain, many = Snapshot(cinder.volumes[volume]), cinder.new(MEMBER), CONF.conductor.outside_threads
    cinder.snapshots[made.id] = made

    def hangs():
        released.wait(120)
        is_silent()

    Keys.failures += [hangs] * many * 5
    servers = [boot(member, flavor, from_snapshot(made.id)) for _number in range(many)]
    attach(admin, server, plain)
    wait_status(cinder, plain, "in-use")
    released.set()
    for uuid in servers:
        admin.wait(uuid, "ERROR", seconds=60)
    cinder.snapshots.clear()
