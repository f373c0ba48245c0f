# ruff: noqa: F811 - fixtures of other modules
"""A key manager that does not answer, and those who want nothing of it."""

import threading

import pytest

from nova.conf import CONF
from tests.cinder_service import Snapshot
from tests.functional.volumes.test_cinder import MEMBER, attach, boot, cinder, outside, server, wait_status  # noqa: F401
from tests.functional.volumes.test_cinder_encrypted import from_snapshot, given, keys, nothing_is_said, volume  # noqa: F401
from tests.key_manager import Keys, is_silent


@pytest.fixture
def released():
    """Set when the key manager is to break down instead of hanging."""
    event = threading.Event()
    yield event
    event.set()


def test_hanging_key_manager_does_not_block_plain_volumes(admin, member, flavor, server, cinder, volume, released):
    """Whoever builds a server with a new encrypted volume asks it while he has his turn at the volume service."""
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
