"""Guests of a virtual host, remembered in one file."""

import pytest

from nova import exception
from nova.objects import states
from nova.virt.fake_guests import GuestStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "guests" / "host.guests"


def opened(path):
    store = GuestStore(str(path))
    store.open()
    return store


def test_what_a_process_left_is_there_when_it_starts_again(path):
    first = opened(path)
    first.boot("a", "instance-1")
    first.boot("b", "instance-2")
    first.boot("c", "instance-3")
    first.set("b", states.SHUTDOWN)
    first.remove("c")
    assert dict(opened(path).power_states()) == {"a": states.RUNNING, "b": states.SHUTDOWN}


def test_the_half_written_line_of_a_killed_process_counts_for_nothing(path):
    first = opened(path)
    first.boot("a", "instance-1")
    with path.open("a") as file:
        file.write("b 1")
    again = opened(path)
    again.boot("c", "instance-3")
    assert sorted(dict(opened(path).power_states())) == ["a", "c"]


def test_the_file_does_not_grow_with_what_happened_but_with_what_is_there(path):
    store = opened(path)
    store.boot("a", "instance-1")
    for _number in range(3000):
        store.set("a", states.SHUTDOWN)
        store.set("a", states.RUNNING)
    assert len(path.read_text().splitlines()) <= 1001
    assert dict(opened(path).power_states()) == {"a": states.RUNNING}


def test_a_guest_is_booted_again_with_its_boots_remembered_up_to_a_bound(path):
    store = opened(path)
    for _number in range(50):
        store.boot("a", "instance-1")
    assert 1 < len(store.get("a").booted) <= 10
    assert store.get("a").name == "instance-1"


def test_unknown_guests():
    store = GuestStore(None)
    store.open()
    store.remove("a")
    for ask in (lambda: store.get("a"), lambda: store.set("a", states.RUNNING)):
        with pytest.raises(exception.GuestNotFound):
            ask()
