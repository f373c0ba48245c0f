"""What all moves of a server from one host to another share: the choice of the host, and the books.

Volumes that an outside service keeps are reached from both hosts while the server moves (bind_volumes); in the end its
row has the ways from the new one, and the others are closed (leave_volumes).
"""

from __future__ import annotations

import logging

from nova import exception
from nova.objects import migration as moves
from nova.objects.action import Failure
from nova.objects.base import Object, new_uuid
from nova.objects.flavor import Flavor
from nova.objects.instance import BlockDevice, Instance
from nova.objects.migration import Migration
from nova.objects.scheduling import RequestSpec, Selection
from nova.operations import placing, plugging
from nova.operations.base import CONDUCTOR, SHARES, VOLUMES, Operation, Step, step
from nova.operations.contexts import Acceptance, Control

LOG = logging.getLogger(__name__)


class MoveData(Object, kw_only=True):
    """``source`` and ``host`` (the destination) are places of the guest while ``migration`` (a uuid) is open.

    ``plugs``: the interfaces whose plug on the destination the guest waits for. ``outside_interfaces``: an outside
    service keeps them, and has to hear where the server is. ``outside_volumes``: the same of volumes; ``here`` and
    ``there``: these, as source and destination reach them. ``looks``: see :mod:`nova.operations.placing`.
    """

    spec: RequestSpec
    migration: str = ""
    source: str = ""
    source_node: str = ""
    source_zone: str | None = None
    candidates: list[Selection] = []
    selected: bool = False
    host: str = ""
    tries: int = 0
    looks: int = 0
    plugs: list[str] = []
    outside_interfaces: bool = False
    outside_volumes: bool = False
    # The server has some, which are opened for the other host, too, while it moves.
    shares: bool = False
    here: list[BlockDevice] = []
    there: list[BlockDevice] = []


def fitted(instance: Instance) -> bool:
    """Whether the server has cells or devices of its host for itself."""
    return instance.numa_topology is not None or bool(instance.pci_devices)


class Bound(Operation):
    """Base of the operations whose external steps bind the server's interfaces (``bind``), and its volumes
    (``bind_volumes``), to a host.

    A subclass that takes volumes along names their steps among its own, and has the data of moves that are about them.
    """

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        self.data.here = [device for device in ctl.instance.block_devices if device.is_volume]
        self.data.there = ctl.outside_volumes.connect_also(self.data.host)

    @step(CONDUCTOR, when="outside_volumes")
    def adopt_volumes(self, ctl: Control) -> None:
        """Before anything is closed, so that the row never has a way that is not there."""
        ctl.outside_volumes.adopt(self.data.there)

    @step(CONDUCTOR, external=VOLUMES, owed=True, when="outside_volumes")
    def leave_volumes(self, ctl: Control) -> None:
        try:
            ctl.outside_volumes.settle()
        except (exception.InvalidVolume, exception.Forbidden) as error:
            LOG.warning("[instance: %s] What its volumes were attached by before it moved stays: %s",
                        self.instance.uuid, error)

    def unbind_volumes(self, ctl: Control) -> None:
        self._keep_ways(ctl, self.data.here, self.data.source)

    @staticmethod
    def _keep_ways(ctl: Control, ways: list[BlockDevice], host: str) -> None:
        ctl.outside_volumes.adopt(ways)
        ctl.outside_volumes.settle(host)

    def take_back(self, of: Step, ctl: Control) -> None:
        """They are bound to the host where the server is now, wherever that may be."""
        if of.external == SHARES:
            ctl.outside_shares.settle()
        elif of.when == "outside_volumes":
            if ctl.instance.deleted:
                ctl.outside_volumes.release()
            else:
                ctl.outside_volumes.settle()
        elif ctl.instance.deleted or not ctl.instance.host:
            ctl.outside_interfaces.release()
        else:
            ctl.outside_interfaces.bind(ctl.instance.host)


class Move(Bound):
    """Base of the operations that claim a second host under the migration's uuid."""

    migration_type: str
    kind = "move"
    ends_consoles = True
    # Whether a claim that was lost to another server is tried on the next host.
    retry_from = "place"

    # --- acceptance --------------------------------------------------------------------------------
    def begin_move(self, ctl: Acceptance, flavor: Flavor, host: str | None = None, *, same_host: bool = False,
                   forced: bool = False, new_flavor: Flavor | None = None) -> None:
        """Fill in where the server may go, and write the migration. Raises ComputeHostNotFound, InvalidVolume."""
        instance = ctl.instance
        if host and not ctl.compute_exists(host):
            raise exception.ComputeHostNotFound(host=host)
        if ctl.bound_host() and not same_host:
            raise exception.InvalidVolume(reason="the server has volumes that cannot leave its host")
        spec = ctl.request_spec(flavor, host, forced)
        spec.ignore_hosts = [] if same_host else [instance.host or ""]
        self.data.spec = spec
        self.data.migration = new_uuid()
        self.data.source, self.data.source_node = instance.host or "", instance.node or ""
        self.data.source_zone = instance.availability_zone
        self.data.host = ""
        self.data.outside_interfaces = ctl.network_is_outside
        self.data.outside_volumes = ctl.has_outside_volumes()
        self.data.shares = bool(instance.shares)
        ctl.open_migration(Migration(
            uuid=self.data.migration, instance_uuid=instance.uuid, migration_type=self.migration_type,
            status=self.first_status, source_compute=self.data.source, source_node=self.data.source_node,
            old_flavor=instance.flavor, new_flavor=new_flavor or instance.flavor, action_uuid=ctl.action_uuid,
            user_id=ctl.ctx.user_id or "", project_id=ctl.ctx.project_id or "", created_at=ctl.now(),
            updated_at=ctl.now()))

    first_status = moves.ACCEPTED

    def relocate(self) -> bool:
        return False  # choose() looks where the server is

    def devices_at(self, of: Step) -> list[BlockDevice]:
        return list({"source": self.data.here, "host": self.data.there}.get(of.place, []))

    # --- cells and devices -----------------------------------------------------------------------------
    def claim_of(self, step: Step) -> str:
        return self.data.migration if step.place == "host" and self._fitted(self.instance) else ""

    def use_claim(self, ctl: Control, consumer: str = "") -> None:
        """The instance has the cells and devices of this claim (a migration's; "": its own)."""
        if self._fitted(ctl.instance):
            ctl.use_claim(consumer)

    def _fitted(self, instance: Instance) -> bool:
        """Whether the server has, or gets, some of its host for itself."""
        return bool(self.data.spec.dedicated_request) or fitted(instance)

    # --- the place -----------------------------------------------------------------------------------
    def choose(self, ctl: Control, status: str) -> Selection:
        """Claim the next candidate under the migration; asks a scheduler when there is none yet."""
        data: MoveData = self.data
        if data.source != ctl.instance.host:
            self._depart_from(ctl)
        selection = placing.next_host(ctl, data, data.source)
        data.host = selection.host
        ctl.claim(selection, data.spec, data.migration)
        plugging.forget(ctl)
        ctl.migrate(data.migration, dest_compute=selection.host, dest_node=selection.node, status=status)
        return selection

    def _depart_from(self, ctl: Control) -> None:
        """What this waited behind, or had to compensate for, has left the server on another host."""
        data, here = self.data, ctl.instance
        if here.host in (data.spec.force_host, data.spec.requested_host):
            raise exception.NoValidHost(reason=f"the server is on host {here.host} already.")
        if data.source in data.spec.ignore_hosts:
            data.spec.ignore_hosts.append(here.host or "")
        data.source, data.source_node, data.source_zone = here.host or "", here.node or "", here.availability_zone
        ctl.migrate(data.migration, source_compute=data.source, source_node=data.source_node)

    def let_go(self, ctl: Control) -> None:
        """Give the claim back; the candidate is not tried again."""
        data: MoveData = self.data
        if data.candidates:
            # Counted where the claim is: one that was lost was never counted.
            ctl.finish_io(failed=None, consumer=data.migration)
            ctl.release_claim(data.migration)
            ctl.migrate(data.migration, dest_compute="", dest_node="")
            if data.here:
                ctl.outside_volumes.adopt(data.here)
        placing.rule_out(data)

    def may_retry(self, failure: Failure) -> bool:
        # Losing the room to another server is nobody's fault; every node is lost at most once.
        if failure.kind != "ClaimLost":
            return False
        if not self.data.candidates:
            self.data.selected = False
        return True

    # --- the books at the end --------------------------------------------------------------------------
    def arrive(self, ctl: Control, status: str) -> None:
        """The server is the destination's alone: its own claim is given back, the migration's is its own now."""
        data: MoveData = self.data
        ctl.release_claim()
        ctl.rekey_claim(data.migration)
        self.use_claim(ctl)
        ctl.finish_io(failed=None, node_uuid=data.candidates[0].node_uuid)
        ctl.migrate(data.migration, status=status, open=False)

    def stay(self, ctl: Control, status: str) -> None:
        """The server stays where it was."""
        ctl.migrate(self.data.migration, status=status, open=False)
