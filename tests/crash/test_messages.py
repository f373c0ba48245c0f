"""Lost, doubled and reordered messages; deaths of the broker and of a compute during many boots."""

from __future__ import annotations

import concurrent.futures
import random
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import requests

from tests.crash import invariants
from tests.crash.faults.relay import Relay, purge
from tests.crash.steps import Points
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

_COMPUTES = ("compute-1", "compute-2")
_HOSTS = tuple(f"compute.{name}" for name in _COMPUTES)
_CONDUCTOR = ("conductor", "conductor-reports")
_BOOTS = 100
# A compute returns before it counts as down, so that no server may be built on another host.
_OPTIONS = {"DEFAULT": {"service_down_time": 60},
            "fake": {"latency": "spawn:0.3,destroy:0.1,*:0.05", "shared_storage": True},
            "volume": {"shared": True, "allow_swap": True, "quota_volumes": -1, "quota_gigabytes": -1}}
_OLD = "2.35"  # the last microversion with /os-volumes
_ANSWERED = frozenset({202, 204, 404, 409, 503})


@pytest.fixture(scope="module")
def transport_url(rabbitmq: Rabbit) -> str:
    return rabbitmq.new_vhost()


@pytest.fixture(scope="module")
def cluster(transport_url: str, new_database: Callable[[], str | None],
            tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    points = Points(tmp_path_factory.mktemp("points"))  # for the journal of guests
    with Cluster(transport_url, new_database(), computes=len(_COMPUTES), options=_OPTIONS,
                 launcher=points.launcher) as made:
        made.flavor("larger", ram=128, disk=1)
        yield made


@pytest.fixture
def nova(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.restore(invariants.BOUND)


def ask(nova: Cluster, method: str, path: str, body: object = None) -> requests.Response | None:
    """Send a request; return the response, or None if there was no response. Other statuses than expected fail."""
    try:
        response = nova.api.request(method, path, body)
    except requests.RequestException:
        return None
    assert response.status_code in _ANSWERED, response.text
    return response


class Life:
    """A server that is created, changed by random actions, and perhaps deleted.

    ``deleted``: the delete was accepted; ``uncertain``: the delete was requested, but may not be accepted.
    """

    def __init__(self, nova: Cluster, number: int) -> None:
        self.nova, self.number = nova, number
        self.uuid: str | None = None
        self.deleted = self.uncertain = False

    def live(self) -> None:
        response = ask(self.nova, "POST", "/servers", {"server": {
            "name": f"life-{self.number}", "flavorRef": "tiny", "imageRef": self.nova.api.image_id,
            "networks": "auto"}})
        if response is None or response.status_code != 202:
            return
        self.uuid = response.json()["server"]["id"]
        chance = random.Random(self.number)
        for _ in range(3):
            time.sleep(chance.uniform(0, 1.0))
            name = chance.choice(["os-stop", "os-start", "pause", "unpause", "suspend", "resume"])
            ask(self.nova, "POST", f"/servers/{self.uuid}/action", {name: None})
        if self.number % 4 == 0:
            response = ask(self.nova, "DELETE", f"/servers/{self.uuid}")
            self.deleted = response is not None and response.status_code == 204
            self.uncertain = not self.deleted


def lives(nova: Cluster, count: int) -> list[Life]:
    """Run ``count`` lives to their ends, a few in parallel."""
    made = [Life(nova, number) for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(Life.live, made))
    return made


def settled(nova: Cluster, made: Sequence[Life]) -> None:
    """Check that all invariants hold, and that no request created two servers."""
    accepted = [life.uuid for life in made if life.uuid and not life.uncertain]
    assert accepted
    # A delete whose response was lost may still be running, so such a server may exist or not.
    invariants.check(nova, accepted, deleted=[life.uuid for life in made if life.uuid and life.deleted])
    names = [server["name"] for server in nova.api.servers().values()]
    assert len(names) == len(set(names)), "a request created two servers"


def twice(chance: random.Random) -> Sequence[float]:
    return [chance.uniform(0, 0.3), chance.uniform(0, 2.0)]


def mixed_up(chance: random.Random) -> Sequence[float]:
    return [chance.choice([0, 0, 0.5, 1.5])]


def sometimes_lost(chance: random.Random) -> Sequence[float]:
    return () if chance.random() < 0.15 else (0,)


@pytest.mark.parametrize("treat", [twice, pytest.param(mixed_up, marks=pytest.mark.full)])
@pytest.mark.parametrize("queues", [_HOSTS, _CONDUCTOR], ids=["orders", "conductor"])
def test_doubled_and_reordered_messages_have_no_effect(nova: Cluster, transport_url: str, queues: Sequence[str],
                                                       treat: Callable[[random.Random], Sequence[float]],
                                                       quick: bool) -> None:
    with Relay(transport_url, queues, treat) as relay:
        made = lives(nova, 12 if quick else 40)
        time.sleep(2)
    assert relay.taken > len(made)
    assert relay.delivered >= relay.taken * len(treat(random.Random(0)))
    settled(nova, made)


@pytest.mark.parametrize("queues", [_HOSTS, pytest.param((*_HOSTS, *_CONDUCTOR), marks=pytest.mark.full)],
                         ids=["orders", "everything"])
def test_lost_messages_are_compensated_for(nova: Cluster, transport_url: str, queues: Sequence[str],
                                           quick: bool) -> None:
    with Relay(transport_url, queues, sometimes_lost) as relay:
        made = lives(nova, 12 if quick else 40)
    assert relay.delivered < relay.taken
    settled(nova, made)


def test_purged_queues_lose_no_operations(nova: Cluster, transport_url: str, quick: bool) -> None:
    """Purge the orders that wait for a host, and the requests that wait for a conductor."""
    nova.kill("compute-1")
    made = lives(nova, 12 if quick else 40)
    orders = purge(transport_url, *_HOSTS)
    nova.kill("conductor-1", "conductor-2")
    more = [Life(nova, 100 + number) for number in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(life.live) for life in more]
        time.sleep(1)
        purge(transport_url, *_CONDUCTOR)
        nova.start("compute-1", "conductor-1", "conductor-2")
        for future in waiting:
            future.result()
    assert orders
    nova.api_returns()
    settled(nova, made + more)


@pytest.mark.parametrize("seconds", [1.0, pytest.param(12.0, marks=pytest.mark.full)])
def test_operations_complete_after_the_broker_restarts(nova: Cluster, rabbitmq: Rabbit, seconds: float,
                                                       quick: bool) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lives, nova, 12 if quick else 40)
        time.sleep(1.5)
        rabbitmq.kill()
        time.sleep(seconds)
        rabbitmq.start()
        made = asked.result()
    nova.api_returns()
    settled(nova, made)


@pytest.mark.parametrize("victims", [("compute-1",), pytest.param(_COMPUTES, marks=pytest.mark.full)], ids="+".join)
def test_boots_complete_after_a_compute_is_killed(nova: Cluster, victims: tuple[str, ...]) -> None:
    before = invariants.times_built(nova)
    accepted = nova.boot_many(_BOOTS)

    def some_run() -> bool:
        return sum(len(guests) for guests in invariants.guests_of(nova).values()) > _BOOTS // 4

    eventually(some_run, 60, "a quarter of the servers is running", interval=0.05)
    nova.kill(*victims)
    assert {server["status"] for server in nova.api.servers().values()} >= {"ACTIVE", "BUILD"}
    nova.start(*victims)
    invariants.check(nova, accepted)
    statuses = [server["status"] for server in nova.api.servers().values()]
    assert statuses == ["ACTIVE"] * _BOOTS
    built = invariants.times_built(nova) - before
    assert {uuid: built[uuid] for uuid in accepted} == dict.fromkeys(accepted, 1)


# --- longer operations -------------------------------------------------------------------------------------
# Seconds for an operation during which several messages are lost in succession.
_LONGEST = 2 * invariants.BOUND
# Seconds by which a message is late: longer than the lease of its step.
_LATE = invariants.LEASE + 2


def resize(nova: Cluster, uuid: str) -> None:
    nova.api.action(uuid, "resize", {"flavorRef": "larger"})
    nova.api.wait(uuid, "VERIFY_RESIZE", _LONGEST)
    nova.api.action(uuid, "confirmResize")
    assert nova.api.wait(uuid, "ACTIVE", _LONGEST)["flavor"]["original_name"] == "larger"


def live_migrate(nova: Cluster, uuid: str) -> None:
    here = nova.api.show(uuid)["OS-EXT-SRV-ATTR:host"]
    nova.api.action(uuid, "os-migrateLive", {"host": None, "block_migration": "auto"})
    assert nova.api.wait(uuid, "ACTIVE", _LONGEST)["OS-EXT-SRV-ATTR:host"] != here


def rebuild(nova: Cluster, uuid: str) -> None:
    nova.api.action(uuid, "rebuild", {"imageRef": nova.api.image_id})
    nova.api.wait(uuid, "ACTIVE", _LONGEST)


def shelve(nova: Cluster, uuid: str) -> None:
    nova.api.action(uuid, "shelve")
    nova.api.wait(uuid, "SHELVED_OFFLOADED", _LONGEST)
    assert invariants.images_of_servers(nova)[uuid] == 1
    nova.api.action(uuid, "unshelve")
    nova.api.wait(uuid, "ACTIVE", _LONGEST)


def attach_volume(nova: Cluster, uuid: str) -> None:
    """Attach, detach and re-attach a volume."""
    volume = nova.api.post("/os-volumes", {"volume": {"size": 1}}, _OLD)["volume"]["id"]

    def becomes(status: str) -> None:
        eventually(lambda: nova.api.get(f"/os-volumes/{volume}", _OLD)["volume"]["status"] == status, _LONGEST,
                   f"the volume becomes {status}", interval=0.3)

    def attach() -> None:
        nova.api.post(f"/servers/{uuid}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}})
        becomes("in-use")

    attach()
    nova.api.delete(f"/servers/{uuid}/os-volume_attachments/{volume}")
    becomes("available")
    attach()


def swap_volume(nova: Cluster, uuid: str) -> None:
    """Attach a volume, swap it for another volume and back."""
    one, two = (nova.api.post("/os-volumes", {"volume": {"size": 1}}, _OLD)["volume"]["id"] for _ in range(2))
    path = f"/servers/{uuid}/os-volume_attachments"

    def becomes(volume: str, status: str) -> None:
        eventually(lambda: nova.api.get(f"/os-volumes/{volume}", _OLD)["volume"]["status"] == status, _LONGEST,
                   f"the volume becomes {status}", interval=0.3)

    nova.api.post(path, {"volumeAttachment": {"volumeId": one}})
    becomes(one, "in-use")
    for old, new in ((one, two), (two, one)):
        assert nova.api.request("PUT", f"{path}/{old}", {"volumeAttachment": {"volumeId": new}}).status_code == 202
        becomes(new, "in-use")
        becomes(old, "available")


def attach_interfaces(nova: Cluster, uuid: str) -> None:
    """Attach two interfaces, and detach one of the two again."""
    path = f"/servers/{uuid}/os-interface"
    ports = [nova.api.post(path, {"interfaceAttachment": {}})["interfaceAttachment"]["port_id"] for _ in range(2)]

    def active() -> set[str]:
        return {port["port_id"] for port in nova.api.get(path)["interfaceAttachments"]
                if port["port_state"] == "ACTIVE"}

    eventually(lambda: active() >= set(ports), _LONGEST, "both ports are attached", interval=0.3)
    nova.api.delete(f"{path}/{ports[0]}")
    eventually(lambda: ports[0] not in active(), _LONGEST, "the deleted port is detached", interval=0.3)
    assert len(nova.api.get(path)["interfaceAttachments"]) == 2


# Number of guests created for the server by the end of each operation.
_STORIES = {resize: 2, live_migrate: 2, rebuild: 2, shelve: 2, attach_volume: 1, swap_volume: 1, attach_interfaces: 1}


_KINDS = {"orders": _HOSTS, "reports": ("conductor-reports",), "select": ("scheduler",)}
# Every message twice, at once and later; or a third of the messages lost, or too late.
_TREATMENTS: dict[str, Callable[[random.Random], Sequence[float]]] = {
    "doubled": lambda _chance: (0, 0.7),
    "lost": lambda chance: () if chance.random() < 1 / 3 else (0,),
    "late": lambda chance: (_LATE,) if chance.random() < 1 / 3 else (0,)}
_CASES = [pytest.param(kind, treatment, marks=[] if (kind, treatment) == ("orders", "doubled") else pytest.mark.full)
          for kind in _KINDS for treatment in _TREATMENTS]


def met(relay: Relay, treatment: str) -> None:
    """Check that the intended faults of messages have occurred."""
    assert relay.taken
    assert relay.delivered == {"doubled": 2 * relay.taken, "late": relay.taken}.get(treatment, relay.delivered)
    assert (relay.delivered < relay.taken) == (treatment == "lost")


@pytest.mark.parametrize(("kind", "treatment"), _CASES)
def test_message_faults_during_longer_operations_have_no_effect(nova: Cluster, transport_url: str, kind: str,
                                                                treatment: str) -> None:
    stories = {nova.api.boot(story.__name__): story for story in _STORIES}
    nova.all_active(list(stories), _LONGEST)
    before = invariants.times_built(nova)
    with (Relay(transport_url, _KINDS[kind], _TREATMENTS[treatment]) as relay,
          concurrent.futures.ThreadPoolExecutor(len(stories)) as pool):
        for future in [pool.submit(story, nova, uuid) for uuid, story in stories.items()]:
            future.result()
        time.sleep(1)  # late messages arrive after the operations
    met(relay, treatment)
    invariants.check(nova, stories)
    built = invariants.times_built(nova)
    assert {before[uuid] for uuid in stories} == {1}
    assert {story.__name__: built[uuid] for uuid, story in stories.items()} == {
        story.__name__: times for story, times in _STORIES.items()}


@pytest.mark.full
@pytest.mark.parametrize(("kind", "treatment"), [case.values for case in _CASES])
def test_message_faults_during_an_evacuation_have_no_effect(nova: Cluster, transport_url: str, kind: str,
                                                            treatment: str) -> None:
    source, destination = _COMPUTES
    moved = [nova.api.boot(f"evacuate-{number}", host=source) for number in range(4)]
    nova.all_active(moved, _LONGEST)
    nova.kill(source)
    host = nova.api.get(f"/os-services?binary=nova-compute&host={source}")["services"][0]["id"]
    nova.api.request("PUT", f"/os-services/{host}", {"forced_down": True})
    with Relay(transport_url, _KINDS[kind], _TREATMENTS[treatment]) as relay:
        for uuid in moved:
            nova.api.action(uuid, "evacuate", {}, "2.94")
        nova.all_active(moved, _LONGEST)
        nova.start(source)
        eventually(lambda: nova.api.request("PUT", f"/os-services/{host}", {
            "forced_down": False}).status_code == 200, _LONGEST, f"{source} is reported as up again", interval=0.3)
    met(relay, treatment)
    invariants.check(nova, moved)
    made = [entry for entry in invariants.journal(nova) if entry[2] in moved]
    assert sorted(made) == sorted((verb, place, uuid) for uuid in moved for verb, place in (
        ("create", source), ("remove", source), ("create", destination)))
