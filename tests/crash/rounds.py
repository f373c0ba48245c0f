"""Rounds of many concurrent operations: a server for each case."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import requests

from nova import bus, conf, context, exception  # isort: skip  (first: it selects oslo's threading back end)

import oslo_messaging as messaging

from nova.objects.servers import states
from nova.operations.shelve import ShelveOffload
from nova.rpcapi.servers import Servers
from tests.crash import invariants
from tests.crash.steps import OPTIONS, SHARED, Case, Hold, Points, When
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.volumes.embedded_shares import new_share, wait_given

# The operation that brings a server from ACTIVE to each state, and the arguments of its request.
_WAYS: dict[str, tuple[str, dict[str, Any]] | None] = {
    states.ACTIVE: None, states.STOPPED: ("stop", {}), states.PAUSED: ("pause", {}),
    states.SUSPENDED: ("suspend", {}), states.RESIZED: ("migrate", {}), states.SOFT_DELETED: ("soft_delete", {}),
    states.RESCUED: ("rescue", {}), states.SHELVED: ("shelve", {"offload": False}),
    states.SHELVED_OFFLOADED: ("shelve", {"offload": True})}
# The arguments of the requests for operations that need any.
_REQUESTS: dict[str, dict[str, Any]] = {
    "resize": {"flavor_id": "larger"}, "reset_state": {"state": states.ACTIVE}, "shelve": {"offload": True},
    "change_password": {"admin_pass": "secret"}, "reclaim": {"before": "2100-01-01T00:00:00Z"},
    # any image id: virtual hosts fetch no images
    "rebuild": {"image": {"id": "another"}},
    "create_image": {"name": "image"}, "create_backup": {"name": "backup", "backup_type": "daily", "rotation": 1}}
# Operations on a volume, which is attached before all but the first; the last operation has a second volume.
_VOLUMES = ("attach_volume", "detach_volume", "swap_volume")
# Operations on a share of a stopped server; the share is attached before the second operation.
_SHARES = ("attach_share", "detach_share")
# Operations on an interface, which is attached before all but the first.
_INTERFACES = ("attach_interface", "detach_interface", "lose_interface")
# Operations on the files of a volume of an external service.
_FILES = ("volume_snapshot_create", "volume_snapshot_delete", "extend_volume")
# Operations that leave an image of the server, unless they are compensated.
_IMAGES = ("create_image", "create_volume_image", "create_backup", "shelve")
# Steps that need another state of the server than their operation.
_STARTS = {("delete", "destroy_other"): states.RESIZED, ("delete", "drop_image"): states.SHELVED_OFFLOADED,
           **{("unshelve", step): states.SHELVED_OFFLOADED for step in (
               "find_image", "place", "bind_volumes", "network", "disks", "start", "complete_volumes", "settle",
               "drop_image")},
           ("unshelve", "power_on"): states.SHELVED,
           **{("reset_state", step): states.RESIZED for step in ("look", "forget", "settle")},
           **{("soft_delete", step): states.RESIZED for step in ("look", "forget", "settle", "power_off")}}
# Number of guests created for the server by the end of a case without and with compensation, where it is not (1, 2).
_BUILT = {"resize": (2, 3), "migrate": (2, 3), "confirm_resize": (2,), "reset_state": (2,), "soft_delete": (2,),
          "revert_resize": (3, 3), "live_migrate": (2, 1), "rebuild": (2,), "rescue": (1, 1), "unrescue": (1,),
          "unshelve": (2, 3), "shelve_offload": (1,),
          **dict.fromkeys((*_VOLUMES, *_SHARES, *_FILES, *_INTERFACES, *_IMAGES), (1, 1))}
_BUILT_AT = {("unshelve", "power_on"): (1,)}
# The state after operations that do not declare it and do not end in ACTIVE.
_FINAL = {"shelve": states.SHELVED_OFFLOADED, "shelve_offload": states.SHELVED_OFFLOADED,
          **dict.fromkeys(_SHARES, states.STOPPED)}
# The state after a compensation, where it differs from the state after success.
_COMPENSATED = {"revert_resize": states.ERROR, "rescue": states.ERROR, "shelve": states.ACTIVE}
_PREPARES = 40.0
# Maximum of servers left by tests: two hosts have room for 512, and a round of all cases creates over a hundred.
_MOST_SERVERS = 150
# The last microversion with /os-volumes.
_OLD = "2.35"

Operate = Callable[..., Any]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Points:
    return Points(tmp_path_factory.mktemp("points"))


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, new_database: Callable[[], str | None], points: Points) -> Iterator[Cluster]:
    options = {**OPTIONS, "volume": {"quota_volumes": -1, "quota_gigabytes": -1, "allow_swap": True},
               "share": {"shared": True}}
    with Cluster(rabbitmq.new_vhost(), new_database(), computes=2, options=options, launcher=points.launcher) as made:
        made.flavor("larger", ram=128, disk=1)
        yield made


@pytest.fixture
def nova(cluster: Cluster, points: Points) -> Iterator[Cluster]:
    yield cluster
    points.release_all()
    for name, process in cluster.processes.items():
        if process.running():
            cluster.thaw(name)
    cluster.restore()
    if len(cluster.api.servers()) > _MOST_SERVERS:
        cluster.delete_all(120)


@pytest.fixture(scope="module")
def operate(cluster: Cluster) -> Iterator[Operate]:
    """Return a function that requests an operation from a conductor; some operations have no API request."""
    conf.register()
    transport = messaging.get_rpc_transport(conf.CONF, url=cluster.transport_url)
    servers = bus.client(transport, Servers)

    # positional only: a request may also have a "name"
    def operate(uuid: str, name: str, /, **request: Any) -> None:
        eventually(lambda: accepted(uuid, name, request), _PREPARES, f"{name} of {uuid} is accepted")

    def accepted(uuid: str, name: str, request: dict[str, Any]) -> bool:
        try:
            servers.operate(context.admin(), uuid, name, request)
        except (exception.ComputeServiceUnavailable, exception.ServiceUnavailable) as error:
            if str(error) != str(exception.ComputeServiceUnavailable()):
                raise
            return False  # a busy machine delayed the host's heartbeats; the request had no effect
        return True

    yield operate
    transport.cleanup()


class Round:
    """One server per case, brought to the state before its operation; then all operations are requested and held."""

    def __init__(self, nova: Cluster, points: Points, chosen: Sequence[Case], when: When,
                 operate: Operate) -> None:
        self.nova, self.points, self.when, self._operate = nova, points, when, operate
        self.names = {f"{case}-{when}-{time.monotonic_ns()}": case for case in chosen}
        self.uuids: dict[str, str] = {}
        # Arguments of the requests that differ between servers.
        self.requests: dict[str, dict[str, Any]] = {}
        self.holds: dict[str, Hold] = {}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for name, uuid in pool.map(self._prepare, self.names):
                if uuid:
                    self.uuids[name] = uuid
            self.holds = {name: case.hold(points, name, when) for name, case in self.names.items()}
            list(pool.map(self._ask, self.names))

    @property
    def ids(self) -> list[str]:
        return list(self.uuids.values())

    def _prepare(self, name: str) -> tuple[str, str | None]:
        case = self.names[name]
        operation = case.operation
        if operation.name == "build":
            return name, None  # the operation creates the server
        api = self.nova.api
        uuid = self.boot(name)
        api.wait(uuid, "ACTIVE", _PREPARES)
        start = _STARTS.get((operation.name, case.step.name)) or next(
            state for state in _WAYS if operation.rules.vm_states is None or state in operation.rules.vm_states)
        if case.step.when == SHARED:
            self._give_share(uuid)
        way = _WAYS[start]
        if way:
            self._operate(uuid, way[0], **way[1])
            api.wait(uuid, states.status(start, None), _PREPARES)
        if operation.name in _VOLUMES:
            self._prepare_volume(name, uuid)
        if operation.name in _SHARES:
            self._prepare_share(name, uuid)
        if operation.name in _INTERFACES[1:]:
            port, = api.get(f"/servers/{uuid}/os-interface")["interfaceAttachments"]
            self.requests[name] = {"port_id": port["port_id"]}
        return name, uuid

    def _prepare_volume(self, name: str, uuid: str) -> None:
        volume, other = self.new_volume(), self.new_volume()
        self.requests[name] = {"volume_id": volume}
        if self.names[name].operation.name == _VOLUMES[2]:
            self.requests[name]["new_volume_id"] = other
        if self.names[name].operation.name != _VOLUMES[0]:
            self._operate(uuid, _VOLUMES[0], volume_id=volume)
            eventually(lambda: self.volume_status(volume) == "in-use", _PREPARES, f"volume {volume} is attached")

    def _give_share(self, uuid: str) -> None:
        """Attach a share to the server and start its guest."""
        self._operate(uuid, "stop")
        self.nova.api.wait(uuid, states.status(states.STOPPED, None), _PREPARES)
        self._operate(uuid, _SHARES[0], share_id=new_share(self.nova))
        wait_given(self.nova, uuid, _PREPARES)
        self._operate(uuid, "start")
        self.nova.api.wait(uuid, "ACTIVE", _PREPARES)

    def _prepare_share(self, name: str, uuid: str) -> None:
        self.requests[name] = {"share_id": new_share(self.nova)}
        if self.names[name].operation.name == _SHARES[1]:
            self._operate(uuid, _SHARES[0], **self.requests[name])
            wait_given(self.nova, uuid, _PREPARES)

    def _ask(self, name: str) -> None:
        if name in self.uuids:
            self.request(name)
        else:
            self.uuids[name] = self.boot(name)

    # --- overridden for volumes of an external service --------------------------------------------------
    def boot(self, name: str) -> str:
        return self.nova.api.boot(name)

    def new_volume(self) -> str:
        return str(self.nova.api.post("/os-volumes", {"volume": {"size": 1}}, _OLD)["volume"]["id"])

    def volume_status(self, volume: str) -> str:
        return str(self.nova.api.get(f"/os-volumes/{volume}", _OLD)["volume"]["status"])

    def request(self, name: str) -> None:
        """Request the operation."""
        operation = self.names[name].operation.name
        self._operate(self.uuids[name], operation, **_REQUESTS.get(operation, self.requests.get(name, {})))

    def leaves_image(self, case: Case, when: When) -> bool:
        return (case.operation.name in _IMAGES and not case.undo) or case.operation is ShelveOffload

    def holders(self) -> list[str]:
        """Wait until all steps are held; return the processes that hold them."""
        return sorted({hold.wait() for hold in self.holds.values()})

    def release(self, holder: str) -> None:
        """Release everything that this process holds."""
        for hold in self.holds.values():
            if hold.holder() == holder:
                hold.release()

    def settle(self) -> list[str]:
        """Check all invariants after confirmations of pending resizes; return the deleted servers."""
        self._confirm()
        gone = [self.uuids[name] for name, case in self.names.items() if case.operation.name in ("delete", "reclaim")]
        invariants.check(self.nova, self.ids, deleted=gone)
        return gone

    def _confirm(self) -> None:
        """Confirm all pending resizes, which releases the claims on the source hosts."""
        servers = self.nova.wait_settled(self.ids, invariants.BOUND)
        for uuid, server in servers.items():
            if server["status"] == "VERIFY_RESIZE":
                eventually(functools.partial(self._confirmed, uuid), invariants.BOUND, f"{uuid} is confirmed",
                           interval=0.5)

    def _confirmed(self, uuid: str) -> bool:
        """Return True if the confirmation was accepted, now or before: the source host must be up."""
        try:
            self._operate(uuid, "confirm_resize")
        except exception.ComputeServiceUnavailable:
            return False
        except exception.MigrationNotFoundByStatus:
            return True  # already being confirmed
        return True

    def ends(self) -> None:
        """Check that every operation has completed without a second guest for any server."""
        nova, gone = self.nova, self.settle()
        servers, built, images = nova.api.servers(), invariants.times_built(nova), invariants.images_of_servers(nova)
        wrong = []
        for name, case in self.names.items():
            uuid = self.uuids[name]
            final = _FINAL.get(case.operation.name, getattr(case.operation, "final", states.ACTIVE))
            if case.undo:
                final = _COMPENSATED.get(case.operation.name, final)
            counts = _BUILT_AT.get((case.operation.name, case.step.name)) or _BUILT.get(case.operation.name, (1, 2))
            expected = counts[case.undo] if uuid not in gone else built[uuid]
            if uuid not in gone and servers[uuid]["status"] != states.status(final, None):
                wrong.append(f"{case}: {servers[uuid]['status']} {servers[uuid].get('fault')}")
            if built[uuid] != expected:
                wrong.append(f"{case}: built {built[uuid]} times")
            expected_images = int(self.leaves_image(case, self.when))
            if images[uuid] != expected_images:
                wrong.append(f"{case}: left {images[uuid]} images")
        assert not wrong, "\n".join(wrong)


@dataclasses.dataclass(frozen=True)
class Moment:
    """A point between steps, passed by the build of a server."""

    point: str
    method: str
    when: When = "before"

    def __str__(self) -> str:
        return f"{self.when}-{self.point}-{self.method}"

    @property
    def named(self) -> bool:
        """Return True if the process can identify the server by name; receivers of reports and schedulers cannot."""
        return self.method not in ("select", "step_done")

    def hold(self, points: Points, server: str) -> Hold:
        if self.point == "submit":
            return points.hold("submit", server=server, operation="build")
        return points.hold(self.point, self.when, method=self.method, **({"server": server} if self.named else {}))


class Boots:
    """Server creations with every given moment held once; responses may be lost."""

    def __init__(self, nova: Cluster, points: Points, moments: Sequence[Moment]) -> None:
        self.nova = nova
        self.pool = concurrent.futures.ThreadPoolExecutor(len(moments))
        names = {f"{moment}-{time.monotonic_ns()}": moment for moment in moments}
        self.names = set(names)
        self._holds = []
        self._answers = []
        # First the moments at which the server is not identified, each held before the next request.
        for name, moment in sorted(names.items(), key=lambda item: item[1].named):
            self._holds.append(moment.hold(points, name))
            self._answers.append(self.pool.submit(self._boot, name))
            if not moment.named:
                self._holds[-1].wait()

    def _boot(self, name: str) -> str | None:
        try:
            response = self.nova.api.request("POST", "/servers", {"server": {
                "name": name, "flavorRef": "tiny", "imageRef": self.nova.api.image_id, "networks": "auto"}})
        except requests.RequestException:
            return None
        assert response.status_code in (202, 503), response.text
        return str(response.json()["server"]["id"]) if response.status_code == 202 else None

    def holders(self) -> list[str]:
        return sorted({hold.wait() for hold in self._holds})

    def all_active(self, lost: int = 0, once: bool = True) -> None:
        """Check that all accepted servers, and servers whose response was lost, are ACTIVE.

        ``once``: no host was declared down, so no guest may have been created twice.
        """
        accepted = [uuid for uuid in (answer.result() for answer in self._answers) if uuid]
        self.pool.shutdown()
        self.nova.api_returns()
        invariants.check(self.nova, accepted)
        made = [server for server in self.nova.api.servers().values() if server["name"] in self.names]
        assert {server["status"] for server in made} <= {"ACTIVE"}, made
        assert len({server["name"] for server in made}) == len(made), "a request created two servers"
        assert len(made) >= len(self.names) - lost
        built = invariants.times_built(self.nova)
        assert not once or {server["id"]: built[server["id"]] for server in made} == {
            server["id"]: 1 for server in made}
