"""Common base of all moves of a server to another host: choice of the host, claims and migration record.

Volumes of an external service are connected to both hosts during the move (bind_volumes). At the end the instance's row
has the connections of the new host, and the connections of the old host are removed (leave_volumes)."""

import logging
from typing import Any

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid
from nova.objects.hosts.scheduling import Selection
from nova.objects.servers import migration as migration_states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.migration import Migration
from nova.operations.framework import placing, plugging
from nova.operations.framework.base import CONDUCTOR, NETWORK, SHARES, VOLUMES, Operation, Step, step
from nova.operations.framework.contexts import Acceptance, Control

LOG = logging.getLogger(__name__)


class MoveData(placing.PlacementData, kw_only=True):
    """Data of a move. ``source`` and ``host`` (the destination) are possible hosts while ``migration`` (uuid) is open.
    ``outside_interfaces`` and ``outside_volumes``: an external service manages the interfaces or volumes and must be
    informed of the new host. ``here``, ``there``: its volumes as connected to the source and to the destination."""

    migration: str = ""
    source: str = ""
    source_node: str = ""
    source_zone: str | None = None
    outside_interfaces: bool = False
    outside_volumes: bool = False
    # The server has shares, which the other host may access, too, during the move.
    shares: bool = False
    here: list[BlockDevice] = []
    there: list[BlockDevice] = []


def has_dedicated_resources(instance: Instance) -> bool:
    """Return True if the server has dedicated CPUs, NUMA cells or PCI devices."""
    return instance.numa_topology is not None or bool(instance.pci_devices)


class Bound(Operation):
    """Base of operations with external steps that bind interfaces (``bind``) and volumes (``bind_volumes``) to a host.
    A subclass that moves volumes lists these steps among its own and has the volume fields of MoveData."""

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        self.data.here = ctl.instance.volume_devices
        self.data.there = ctl.outside_volumes.connect_also(self.data.host)

    @step(CONDUCTOR, when="outside_volumes")
    def adopt_volumes(self, ctl: Control) -> None:
        """Store the new connections before old ones are removed, so that the row never has a removed connection."""
        ctl.volumes.adopt(self.data.there)

    @step(CONDUCTOR, external=VOLUMES, deferrable=True, when="outside_volumes")
    def leave_volumes(self, ctl: Control) -> None:
        try:
            ctl.outside_volumes.reconcile()
        except (exception.InvalidVolume, exception.Forbidden) as error:
            LOG.warning("[instance: %s] Cannot remove the volume attachments to the previous host; delete them in the "
                        "volume service: %s", self.instance.uuid, error)

    @step(CONDUCTOR, undo="bind_back", external=NETWORK, when="outside_interfaces")
    def bind(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.host)

    def bind_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.source)

    def unbind_volumes(self, ctl: Control) -> None:
        self._restore_connections(ctl, self.data.here, self.data.source)

    @staticmethod
    def _restore_connections(ctl: Control, devices: list[BlockDevice], host: str) -> None:
        ctl.volumes.adopt(devices)
        ctl.outside_volumes.reconcile(host)

    def clean_up(self, of: Step, ctl: Control) -> None:
        """Bind the resources to the current host of the server, which may differ from the hosts of this operation."""
        if of.external == SHARES:
            ctl.outside_shares.reconcile()
        elif of.when == "outside_volumes":
            if ctl.instance.deleted:
                ctl.outside_volumes.release()
            else:
                ctl.outside_volumes.reconcile()
        elif ctl.instance.deleted or not ctl.instance.host:
            ctl.outside_interfaces.release()
        else:
            ctl.outside_interfaces.bind(ctl.instance.host)


class Move(Bound):
    """Base of the operations that claim resources on a second host under the migration's uuid."""

    migration_type: str
    kind = "move"
    ends_consoles = True
    retry_from = "place"  # after a claim is lost to another server, the next host is tried

    @classmethod
    def begin(cls, instance: Instance, request: Any) -> dict[str, Any]:
        return {"spec": placing.empty_spec(instance)}  # begin_move() replaces it

    def begin_move(self, ctl: Acceptance, flavor: Flavor, host: str | None = None, *, same_host: bool = False,
                   forced: bool = False, new_flavor: Flavor | None = None) -> None:
        """Fill in the possible destinations and write the migration. Raises ComputeHostNotFound, InvalidVolume."""
        instance = ctl.instance
        if host and not ctl.compute_exists(host):
            raise exception.ComputeHostNotFound(host=host)
        if ctl.volumes.bound_host() and not same_host:
            raise exception.InvalidVolume(reason="the server has volumes that exist only on its host")
        spec = ctl.request_spec(flavor, host, forced)
        spec.ignore_hosts = [] if same_host else [instance.host or ""]
        self.data.spec = spec
        self.data.migration = new_uuid()
        self.data.source, self.data.source_node = instance.host or "", instance.node or ""
        self.data.source_zone = instance.availability_zone
        self.data.host = ""
        self.data.outside_interfaces = ctl.network_is_outside
        self.data.outside_volumes = ctl.volumes.are_outside
        self.data.shares = bool(instance.shares)
        ctl.open_migration(Migration(
            uuid=self.data.migration, instance_uuid=instance.uuid, migration_type=self.migration_type,
            status=self.first_status, source_compute=self.data.source, source_node=self.data.source_node,
            old_flavor=instance.flavor, new_flavor=new_flavor or instance.flavor, action_uuid=ctl.action_uuid,
            user_id=ctl.ctx.user_id or "", project_id=ctl.ctx.project_id or "", created_at=ctl.now(),
            updated_at=ctl.now()))

    first_status = migration_states.ACCEPTED

    def relocate(self) -> bool:
        return False  # choose() checks the current host

    def devices_at(self, of: Step) -> list[BlockDevice]:
        return list({"source": self.data.here, "host": self.data.there}.get(of.place, []))

    def claim_of(self, step: Step) -> str:
        return self.data.migration if step.place == "host" and self._has_dedicated_resources(self.instance) else ""

    def use_claim(self, ctl: Control, consumer: str = "") -> None:
        """Set the instance's dedicated resources to those of a claim (``consumer``: a migration; "": the instance)."""
        if self._has_dedicated_resources(ctl.instance):
            ctl.use_claim(consumer)

    def _has_dedicated_resources(self, instance: Instance) -> bool:
        """Return True if the server has, or requests, dedicated resources."""
        return bool(self.data.spec.dedicated_request) or has_dedicated_resources(instance)

    def choose(self, ctl: Control, status: str) -> Selection:
        """Claim the next candidate under the migration; request candidates from a scheduler if there are none."""
        data: MoveData = self.data
        here = ctl.instance
        if data.source != here.host:  # an operation that ran before or was superseded moved the server
            if here.host in (data.spec.force_host, data.spec.requested_host):
                raise exception.NoValidHost(reason=f"the server is on host {here.host} already.")
            if data.source in data.spec.ignore_hosts:
                data.spec.ignore_hosts.append(here.host or "")
            data.source, data.source_node, data.source_zone = here.host or "", here.node or "", here.availability_zone
            ctl.migrate(data.migration, source_compute=data.source, source_node=data.source_node)
        selection = placing.next_host(ctl, data, data.source)
        data.host = selection.host
        ctl.claim(selection, data.spec, data.migration)
        plugging.forget(ctl)
        ctl.migrate(data.migration, dest_compute=selection.host, dest_node=selection.node, status=status)
        return selection

    def let_go(self, ctl: Control) -> None:
        """Release the claim on the current candidate and remove it from the candidates."""
        data: MoveData = self.data
        if data.candidates:
            # Before the release, since the claim names the node. A node without the claim has not counted the move.
            ctl.finish_io(failed=None, consumer=data.migration)
            ctl.release_claim(data.migration)
            ctl.migrate(data.migration, dest_compute="", dest_node="")
            if data.here:
                ctl.volumes.adopt(data.here)
        placing.rule_out(data)

    def may_retry(self, failure: Failure) -> bool:
        # A claim lost to another server does not count as a failure; each node is tried at most once.
        if failure.kind != "ClaimLost":
            return False
        if not self.data.candidates:
            self.data.selected = False
        return True

    # --- claims and migration record at the end -------------------------------------------------------------
    def arrive(self, ctl: Control, status: str) -> None:
        """Make the destination the only host: replace the instance's claim with that of the migration."""
        data: MoveData = self.data
        ctl.release_claim()
        ctl.rekey_claim(data.migration)
        self.use_claim(ctl)
        ctl.finish_io(failed=None, node_uuid=data.candidates[0].node_uuid)
        ctl.migrate(data.migration, status=status, open=False)

    def stay(self, ctl: Control, status: str) -> None:
        """Close the migration; the server stays on the source."""
        ctl.migrate(self.data.migration, status=status, open=False)
