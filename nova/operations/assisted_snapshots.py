"""Assisted snapshots of volumes that are files, which only the hypervisor of the running guest can snapshot.

The volume service creates the overlay file before the operation, or deletes the file that is no longer needed after it.
The operation switches the guest to the new file or merges files. Only the host knows which files the guest uses, so the
compensation checks them there. The service waits for the result and receives it even if the operation fails."""

import msgspec

from nova import exception
from nova.objects.base import Object
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice
from nova.operations.framework.base import CONDUCTOR, VOLUMES, NoRequest, Releasing, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules

# Seconds after which the step on the host fails. Merging files takes at least as long as reading them.
_DEADLINE = 2 * 3600.0
_EVENT = "compute_volume_snapshot"
_STATES = frozenset({states.ACTIVE, states.PAUSED})


class CreateRequest(Object, kw_only=True):
    """``new_file``: name of the overlay file to which the guest writes, in the directory of the current one."""

    volume_id: str
    snapshot_id: str
    new_file: str


class DeleteRequest(Object, kw_only=True):
    """Request to merge overlay files. With ``merge_target_file``: commit ``file_to_merge`` and the files down to the
    target into the target. Without it: pull the files above ``file_to_merge`` (None: all) into the active file."""

    volume_id: str
    snapshot_id: str
    file_to_merge: str | None = None
    merge_target_file: str | None = None


class AssistedData(Object, kw_only=True):
    """``device``: the volume of the snapshot; ``done``: the guest uses the requested files."""

    host: str = ""
    device: BlockDevice | None = None
    snapshot_id: str = ""
    new_file: str = ""
    file_to_merge: str | None = None
    merge_target_file: str | None = None
    done: bool = False


class _Assisted(Releasing):
    """Common steps of assisted snapshots. Subclasses define what the host does."""

    data_type = AssistedData
    answer_type = NoRequest
    point_of_no_return = "change"
    service_awaits_end = True
    awaited: str  # status of the snapshot at the service during the operation

    def accept(self, ctl: Acceptance, request: CreateRequest | DeleteRequest) -> None:
        device = self.instance.attached(request.volume_id)
        if device.multiattach:
            raise exception.InvalidVolume(reason=f"volume {request.volume_id} is multiattach, and only one server "
                                                 "can write to a volume file with snapshots")
        if device.encryption is not None:
            raise exception.InvalidVolume(reason=f"volume {request.volume_id} is encrypted, and Nova cannot decrypt "
                                                 "the files of a volume with snapshots")
        if not ctl.volumes.are_outside:
            raise exception.InvalidVolume(reason="only volumes of Cinder support snapshots")
        self.data.device = device

    @step(CONDUCTOR, undo="give_up", external=VOLUMES)
    def take(self, ctl: Control) -> None:
        """Check the volume again: it may have been detached, or the server moved, while the operation was queued."""
        self.data.device = ctl.instance.attached_now(self.data.device)
        ctl.outside_volumes.check_assisted(self.data.device, self.data.snapshot_id, self.awaited)

    @step("host", event=_EVENT, undo="check_files", when_down="wait", deadline=_DEADLINE, results=("done",),
          undo_results=("done",))
    def change(self, host: HostContext) -> None:
        self.make(host)
        host.result(done=True)

    # The compensation reports success, like the step, because the guest already uses the files.
    @step(CONDUCTOR, event=_EVENT, undo="hand_over", external=VOLUMES)
    def hand_over(self, ctl: Control) -> None:
        ctl.outside_volumes.end_assisted(self.data.snapshot_id, self.awaited, done=True)

    def make(self, host: HostContext) -> None:
        raise NotImplementedError

    def check_files(self, host: HostContext) -> None:
        raise NotImplementedError

    def give_up(self, ctl: Control) -> None:
        ctl.outside_volumes.end_assisted(self.data.snapshot_id, self.awaited, done=self.data.done)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        self.superseded(ctl)


class VolumeSnapshotCreate(_Assisted):
    name = action = "volume_snapshot_create"
    rules = Rules(label="volume_snapshot_create", vm_states=_STATES, lock=False, host="up", beside=True, release=4)
    request_type = CreateRequest
    awaited = "creating"

    def _renewed(self) -> BlockDevice:
        """Return the device as it is after success."""
        device: BlockDevice = self.data.device
        return msgspec.structs.replace(device, connection_info={
            **device.connection_info, "name": self.data.new_file, "format": "qcow2"})

    def make(self, host: HostContext) -> None:
        host.driver.volume_files.snapshot(host.instance, host.connected(self._renewed()))

    def check_files(self, host: HostContext) -> None:
        host.result(done=host.driver.volume_files.names(host.instance, self.data.device)[:1] == [self.data.new_file])

    def superseded(self, ctl: Control) -> None:
        if self.data.done:
            ctl.volumes.reach(self._renewed())


class VolumeSnapshotDelete(_Assisted):
    name = action = "volume_snapshot_delete"
    kind = "swap"  # may take hours, and must not occupy the threads of shorter operations
    rules = Rules(label="volume_snapshot_delete", vm_states=_STATES, lock=False, host="up", beside=True, release=4)
    request_type = DeleteRequest
    awaited = "deleting"

    def make(self, host: HostContext) -> None:
        host.driver.volume_files.merge(host.instance, self.data.device, self.data.file_to_merge,
                                       self.data.merge_target_file, host.cancelled)

    def check_files(self, host: HostContext) -> None:
        host.result(done=host.driver.volume_files.cancel(host.instance, self.data.device, self.data.file_to_merge,
                                                         self.data.merge_target_file))


# Operations for which a volume service waits when it creates or deletes a snapshot.
ASSISTED = (VolumeSnapshotCreate.name, VolumeSnapshotDelete.name)
