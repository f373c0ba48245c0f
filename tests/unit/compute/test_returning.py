"""Hosts whose heartbeats resume simultaneously, for example after an outage of the broker."""

import threading
import time
import types

import pytest

from nova import conf
from nova.compute.host import Machine
from nova.compute.reconcile import Reconciler
from nova.conf import CONF
from nova.network.base import NoNetwork
from nova.objects.base import new_uuid
from nova.objects.servers.guest import Eviction, Whereabouts
from nova.virt.fake.driver import FakeDriver

HOSTS = 40


class Conductor:
    """A fake conductor that records the time of the first evictions query per host."""

    def __init__(self):
        self.asked = {}
        self._lock = threading.Lock()

    def evictions(self, _ctx, host, _limit, _marker):
        with self._lock:
            self.asked.setdefault(host, time.monotonic())
        return []

    def expected(self, _ctx, _host, _limit, _marker):
        return []


@pytest.fixture
def conductor():
    conf.register()
    CONF.set_override("report_interval", 1)
    yield Conductor()
    CONF.clear_override("report_interval")


def test_resumed_hosts_synchronize_their_guests_at_different_times(conductor):
    made = [Reconciler(Machine(name=f"h{number}", driver=FakeDriver(f"h{number}"), network=NoNetwork(), images=None,
                               cache=None), conductor, None) for number in range(HOSTS)]
    for reconciler in made:
        reconciler.heartbeat_resumed()
    end = time.monotonic() + 30
    while len(conductor.asked) < HOSTS:
        assert time.monotonic() < end
        time.sleep(0.02)
    for reconciler in made:
        reconciler.stop()
    moments = sorted(conductor.asked.values())
    assert moments[-1] - moments[0] > CONF.report_interval / 3


def test_evicted_guest_is_removed_soon_after_the_step_that_used_it_when_the_host_started():
    """Found by a storm: the guest stayed until the next periodic comparison, ten minutes later."""
    conf.register()
    uuid, removed, used = new_uuid(), [], threading.Event()
    conductor = types.SimpleNamespace(
        evictions=lambda _ctx, _host, _limit, marker: [] if marker else [Eviction(uuid=uuid)],
        expected=lambda *_arguments: [],
        whereabouts=lambda _ctx, _host, uuids: [Whereabouts(uuid=uuid, possible_hosts=[], must_leave=True)],
        evicted=lambda _ctx, _host, uuids, _since: removed.extend(uuids))
    machine = Machine(name="h1", driver=FakeDriver("h1"), network=NoNetwork(), images=None, cache=None)
    reconciler = Reconciler(machine, conductor, types.SimpleNamespace(busy=lambda _uuid: not used.is_set()))
    reconciler.compare()
    assert not removed
    used.set()
    end = time.monotonic() + 10
    while not removed:
        assert time.monotonic() < end
        time.sleep(0.02)
    reconciler.stop()
    assert removed == [uuid]
