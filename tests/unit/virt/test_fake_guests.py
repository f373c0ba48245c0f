"""Guests of a virtual host, stored in a file."""

import pytest

from nova import exception
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice
from nova.virt.fake.guests import FlavorSize, GuestStore
from tests.unit.virt.guests import interface, server


def instance(uuid, number=1, **fields):
    return server(uuid=uuid, id=number, **fields)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "guests" / "host.guests"


def opened(path):
    store = GuestStore(str(path))
    store.open()
    return store


def test_guest_store_is_persistent_across_restarts(path):
    first = opened(path)
    first.boot(instance("a", 1))
    first.boot(instance("b", 2))
    first.boot(instance("c", 3))
    first.change("b", power_state=states.SHUTDOWN)
    first.remove("c")
    assert dict(opened(path).power_states()) == {"a": states.RUNNING, "b": states.SHUTDOWN}


def test_truncated_last_line_of_the_guest_file_is_ignored(path):
    first = opened(path)
    first.boot(instance("a", 1))
    with path.open("a") as file:
        file.write('b {"power_state":1')
    again = opened(path)
    again.boot(instance("c", 3))
    assert sorted(dict(opened(path).power_states())) == ["a", "c"]


def test_guest_file_size_is_bounded_by_compaction(path):
    store = opened(path)
    store.boot(instance("a", 1))
    for _number in range(3000):
        store.change("a", power_state=states.SHUTDOWN)
        store.change("a", power_state=states.RUNNING)
    assert len(path.read_text().splitlines()) <= 1001
    assert dict(opened(path).power_states()) == {"a": states.RUNNING}


def test_boot_history_of_a_guest_is_bounded(path):
    store = opened(path)
    for _number in range(50):
        store.boot(instance("a", 1))
    assert 1 < len(store.get("a").booted) <= 10
    assert store.get("a").name == "instance-00000001"


def test_unknown_guests_raise_guest_not_found():
    store = GuestStore(None)
    store.open()
    store.remove("a")
    for ask in (lambda: store.get("a"), lambda: store.change("a", power_state=states.RUNNING)):
        with pytest.raises(exception.GuestNotFound):
            ask()


def test_guest_devices_and_size_are_persistent(path):
    volume = BlockDevice(source="volume", destination="volume", volume_id="v", device_name="/dev/vdb")
    opened(path).boot(instance("a", block_devices=[volume], network_info=[interface()], flavor={"root_gb": 3}))
    guest = opened(path).get("a")
    assert guest.size == FlavorSize("m1.nano", 1, 128, 3)
    assert guest.volumes == (("/dev/vdb", "v"),)
    assert guest.interfaces == (interface().mac,)


def test_incoming_guest_is_not_listed(path):
    store = opened(path)
    store.define(instance("a"), states.RUNNING, incoming=True)
    assert store.power_states() == []
    store.change("a", incoming=False)
    assert opened(path).power_states() == [("a", states.RUNNING)]
