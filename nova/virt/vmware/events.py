"""Reports of guests whose power state changes, from updates of vCenter."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from pyVmomi import vim, vmodl

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.guest import GuestStatus
from nova.virt.driver import EventHandler
from nova.virt.vmware.cluster import GUEST, MACHINE, Cluster, machine_of
from nova.virt.vmware.guests import POWER_STATES
from nova.virt.vmware.session import VCenter, view_spec

LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
# Seconds that the cancellation of a request may take.
_CANCEL_SECONDS = 2.0


class Watcher:
    """A thread that waits for updates in its own session. ``lost``: called once when vCenter becomes unreachable."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self._collector: Any = None
        self.lost: Callable[[exception.NovaException], None] | None = None

    def start(self, on_event: EventHandler) -> None:
        self._stopped = stopped = threading.Event()
        threading.Thread(target=self._run, args=(on_event, stopped), name="vmware-events", daemon=True).start()

    def stop(self) -> None:
        """Stop reporting. The thread ends after its current request, which is cancelled if vCenter responds."""
        self._stopped.set()
        if self._collector is not None:
            cancelling = threading.Thread(target=self._cancel, name="vmware-cancel", daemon=True)
            cancelling.start()
            cancelling.join(_CANCEL_SECONDS)

    def _cancel(self) -> None:
        with contextlib.suppress(exception.NovaException):
            self._collector.CancelWaitForUpdates()

    def _run(self, on_event: EventHandler, stopped: threading.Event) -> None:
        reported = False
        while not stopped.is_set():
            vcenter = VCenter()
            try:
                vcenter.start()
                if reported:
                    LOG.info("vCenter %s is reachable again", CONF.vmware.host_ip)
                reported = False
                self._watch(vcenter, on_event, stopped)
            except exception.NovaException as error:
                if stopped.is_set():
                    return
                if not reported:
                    LOG.warning("Cannot read power state changes of guests from vCenter, retrying every %d s: %s",
                                _RETRY_SECONDS, error.inside)
                    if self.lost is not None and isinstance(error, exception.HypervisorUnavailable):
                        self.lost(error)
                reported = True
                stopped.wait(_RETRY_SECONDS)
            except Exception:
                LOG.exception("Reading power state changes from vCenter failed, retrying in %d s", _RETRY_SECONDS)
                stopped.wait(_RETRY_SECONDS)
            finally:
                vcenter.stop()

    def _watch(self, vcenter: VCenter, on_event: EventHandler, stopped: threading.Event) -> None:
        content, query = vcenter.content, vmodl.query.PropertyCollector
        # View the folder: vCenter's simulator never updates views of resource pools. _report() ignores other clusters.
        folder = vcenter.reference(vim.Folder, self._cluster.folder._moId)
        view = content.viewManager.CreateContainerView(folder, [vim.VirtualMachine], True)
        # A separate PropertyCollector: while it waits for updates, it blocks other queries.
        self._collector = collector = content.propertyCollector.CreatePropertyCollector()
        collector.CreateFilter(query.FilterSpec(
            objectSet=[view_spec(view)],
            propSet=[query.PropertySpec(type=vim.VirtualMachine, pathSet=["runtime.powerState"], all=False)]), True)
        states_of: dict[str, str] = {}
        version, first = "", True
        # Wait for less than the timeout of a request, which would fail otherwise.
        wait = query.WaitOptions(maxWaitSeconds=max(1, CONF.vmware.request_timeout // 2))
        while not stopped.is_set():
            updates = collector.WaitForUpdatesEx(version, wait)
            if updates is None:
                continue
            version = updates.version
            changed = []
            for change in (change for part in updates.filterSet or () for change in part.objectSet or ()):
                identity = change.obj._moId
                if change.kind == "leave":
                    states_of.pop(identity, None)
                    continue
                power = str(next((entry.val for entry in change.changeSet if entry.name == "runtime.powerState"),
                                 states_of.get(identity)))
                if states_of.get(identity) != power:
                    changed.append(vcenter.reference(vim.VirtualMachine, identity))
                states_of[identity] = power
            if not first:
                self._report(vcenter, changed, on_event, stopped)
            # The initial state of many machines arrives in several parts, and is not reported.
            first = first and bool(updates.truncated)

    def _report(self, vcenter: VCenter, changed: list[Any], on_event: EventHandler, stopped: threading.Event) -> None:
        hosts = {host._moId for host in self._cluster.all_hosts()} if changed else set()
        for ref, facts in vcenter.properties(changed, MACHINE).items():
            machine = machine_of(ref, facts)
            if machine is not None and machine.kind == GUEST and machine.host is not None \
                    and machine.host._moId in hosts and not stopped.is_set():
                on_event(GuestStatus(uuid=machine.uuid, power_state=POWER_STATES.get(machine.power, states.NOSTATE)))
