"""Handling of events about servers from external services, except the events that operations wait for.

Events may be lost, so interfaces are also compared with the ports of the network service from time to time. A
difference is processed like the missed event."""

import contextlib
import functools
import logging
import random
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.db.hosts import services
from nova.db.servers import servers
from nova.objects.hosts.service import BARE_METAL
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.external_event import COMPLETED, ExternalEvent
from nova.objects.servers.instance import Instance
from nova.operations.extend_volume import ExtendVolume
from nova.operations.interfaces import LoseInterface
from nova.service.process import workers_of

LOG = logging.getLogger(__name__)

_CHANGED = ("network-changed", "network-vif-plugged", "network-vif-unplugged")
_DELETED = "network-vif-deleted"
_EXTENDED = "volume-extended"
_POWER = "power-update"
_POWER_STATES = {"POWER_ON": states.RUNNING, "POWER_OFF": states.SHUTDOWN}
# Seconds after which the list of hosts is read again if it was empty.
_EMPTY = 60.0
_PAGE = 500  # number of servers per query
_REFRESHES = 5  # attempts to store the interfaces of a server that other tasks change at the same time
_ID = re.compile(r"[0-9a-fA-F-]{1,64}")  # a safe volume id: it cannot change the path of a request to the service


def process_network_events(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Refresh changed interfaces and detach deleted ports. ``events`` are of servers that have a host."""
    events = list(events)
    for event in events:
        if event.name == _DELETED and event.tag:
            try:
                start(engine, context.admin(), event.instance_uuid, LoseInterface.name, {"port_id": event.tag})
            except (exception.NotFound, exception.Conflict) as error:
                LOG.info("[instance: %s] Port %s was deleted, but its interface is not detached: %s",
                         event.instance_uuid, event.tag, error)
    for uuid in sorted({event.instance_uuid for event in events if event.name in _CHANGED}):
        # All events share one queue, so that events of ten thousand servers do not delay the work of projects.
        engine.in_background("", f"interfaces {uuid}", functools.partial(_refresh, engine.core, uuid))


def _refresh(core: Core, uuid: str) -> None:
    """Copy the interfaces from the network service to the server's row. The next event repeats a failed update.

    The row is written only if it is unchanged since the ports were read. Otherwise the ports are read again: another
    task may have stored a newer state of the ports."""
    try:
        for _attempt in range(_REFRESHES):
            instance = core.db.read(lambda connection: servers.get(connection, uuid))
            if not instance.network_info:
                return
            refreshed = {vif.id: vif for vif in ConductorControl(
                core, context.admin(), instance).outside_interfaces.refreshed()}
            if core.db.write(functools.partial(_store_interfaces, before=instance, refreshed=refreshed)):
                return
        LOG.warning("[instance: %s] The interfaces changed during each of %d refreshes; the next network event or the"
                    " periodic comparison with the ports refreshes them", uuid, _REFRESHES)
    except exception.InstanceNotFound:
        LOG.debug("[instance: %s] Not refreshing the interfaces: the instance was deleted meanwhile", uuid)
    except exception.NovaException as error:
        LOG.warning("[instance: %s] Cannot refresh the interfaces until the next network event: %s", uuid, error)


def _store_interfaces(connection: sa.Connection, before: Instance, refreshed: Mapping[str, VIF]) -> bool:
    """Store interfaces as read from the network service; return False if the row is not like ``before`` any more."""
    now = servers.lock(connection, before.uuid).network_info
    if now != before.network_info:
        return False
    interfaces = [
        msgspec.structs.replace(vif, label=new.label, mtu=new.mtu, fixed_ips=new.fixed_ips, active=new.active,
                                floating=new.floating) if (new := refreshed.get(vif.id)) else vif for vif in now]
    if interfaces != now:
        servers.update(connection, before.uuid, {"network_info": interfaces})
    return True


class MissedEvents:
    """The periodic task that compares the interfaces on a host with the ports of the network service. All conductor
    processes together compare each host once per heal_instance_info_cache_interval on average, in random order."""

    def __init__(self, core: Core, engine: Engine) -> None:
        self._core, self._engine = core, engine
        self._hosts: list[str] = []
        self._pause = _EMPTY

    def run(self) -> float:
        """Compare the next host; return the seconds until the next run."""
        if not self._hosts:
            self._hosts, processes = self._core.db.read(_hosts_and_processes)
            random.shuffle(self._hosts)
            self._pause = CONF.heal_instance_info_cache_interval * processes / max(1, len(self._hosts))
        if not self._hosts:
            return _EMPTY
        host = self._hosts.pop()
        events = self._core.allocator.missed_events(context.admin(), host, lambda: self._idle_servers(host))
        if events:
            LOG.warning("Host %s: %d events of the network service were missed: %s", host, len(events), ", ".join(
                f"{event.name} of server {event.instance_uuid}" for event in events[:10]))
            process_network_events(self._engine, events)
        return self._pause

    def _idle_servers(self, host: str) -> Iterator[Instance]:
        """Yield the servers of a host that no operation changes at present."""
        marker = None
        while True:
            page = self._core.db.read(functools.partial(servers.on_host, host=host, limit=_PAGE, marker=marker))
            yield from (server for server in page if server.host == host and server.action_uuid is None)
            if len(page) < _PAGE:
                return
            marker = page[-1].uuid


def _hosts_and_processes(connection: sa.Connection) -> tuple[list[str], int]:
    """Return the hosts, and the number of running conductor processes."""
    conductors = sum(service.up for service in services.index(connection, binary="nova-conductor"))
    hosts = [service.host for service in services.index(connection, binary="nova-compute")]
    return hosts, max(1, conductors) * workers_of(CONF.conductor.workers)


def process_volume_events(engine: Engine, events: Iterable[ExternalEvent]) -> None:
    """Start the extension of the guest's disk for each extended volume. ``events`` are of servers that have a host."""
    for event in events:
        if event.name == _EXTENDED and event.tag and event.status == COMPLETED:
            _extend(engine, event.instance_uuid, event.tag)


def process_power_events(core: Core, events: Iterable[ExternalEvent]) -> None:
    """Store the power states of bare metal servers that Ironic reports. An operation in progress reads the state at its
    end. Events about other servers are ignored: their hosts report the power state."""
    reported = {event.instance_uuid: _POWER_STATES.get((event.tag or "").upper(), states.NOSTATE)
                for event in events if event.name == _POWER and event.status == COMPLETED}

    def write(connection: sa.Connection, uuid: str, power_state: int) -> None:
        instance = servers.lock(connection, uuid)
        if BARE_METAL not in (services.connector(connection, instance.host or "") or {}) or instance.action_uuid:
            return
        vm_state = states.vm_state_of(instance.vm_state, power_state) or instance.vm_state
        if (vm_state, power_state) != (instance.vm_state, instance.power_state):
            servers.update(connection, uuid, {"power_state": power_state, "vm_state": vm_state})
            LOG.info("[instance: %s] The power state of the node changed to %s without an operation", uuid,
                     states.POWER_STATES[power_state])

    for uuid, power_state in sorted(reported.items()):
        with contextlib.suppress(exception.InstanceNotFound):  # the server was deleted meanwhile
            core.db.write(functools.partial(write, uuid=uuid, power_state=power_state))


def _extend(engine: Engine, uuid: str, volume_id: str) -> None:
    try:
        start(engine, context.admin(), uuid, ExtendVolume.name, {"volume_id": volume_id})
    except (exception.NotFound, exception.Conflict) as error:
        LOG.info("[instance: %s] Volume %s was extended, but its disk in the guest cannot be extended: %s", uuid,
                 volume_id, error)
        if _ID.fullmatch(volume_id):
            engine.in_background("", f"extension {uuid} {volume_id}",
                                 functools.partial(_refuse, engine.core, uuid, volume_id))


def _refuse(core: Core, uuid: str, volume_id: str) -> None:
    """Report the failed extension to the volume service. If that fails, an operator must reset the volume's status."""
    try:
        instance = core.db.read(lambda connection: servers.get(connection, uuid, deleted=True))
        ConductorControl(core, context.admin(), instance).outside_volumes.end_extension(volume_id, 0, done=False)
    except exception.NovaException as error:
        LOG.warning("[instance: %s] Cannot report the failed extension of volume %s to its service: %s; "
                    "an operator must reset the status of the volume", uuid, volume_id, error)
