"""Snapshots of volumes that are files, which the volume service cannot make or delete while a guest writes to them.

The service makes the new file, or removes the one that is not needed any more; between that the guest's hypervisor has
the guest write to the new one, or puts two together. Which files the guest has is known to its host alone, so that one
is asked by the compensation, too. However it ends, the service is told: it waits for that.
"""

from __future__ import annotations

import msgspec

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import BlockDevice
from nova.operations.base import CONDUCTOR, VOLUMES, NoRequest, Operation, Rules, step
from nova.operations.contexts import Acceptance, Control, Host

# Seconds; two files are put together in no less than it takes to read one.
_DEADLINE = 2 * 3600.0
_EVENT = "compute_volume_snapshot"
_STATES = frozenset({states.ACTIVE, states.PAUSED})


class CreateRequest(Object, kw_only=True):
    """``new_file``: the name of the file that the guest writes to from now on, beside the one that it has."""

    volume_id: str
    snapshot_id: str
    new_file: str


class DeleteRequest(Object, kw_only=True):
    """What is in ``file_to_merge``, and between it and ``merge_target_file``, is put into that one.

    Without a target what is between ``file_to_merge`` (None: below all others) and the file that the guest writes to
    is put into the latter.
    """

    volume_id: str
    snapshot_id: str
    file_to_merge: str | None = None
    merge_target_file: str | None = None


class AssistedData(Object, kw_only=True):
    """``device``: whose snapshot it is; ``done``: the guest has the files that were asked for."""

    host: str = ""
    device: BlockDevice | None = None
    snapshot_id: str = ""
    new_file: str = ""
    file_to_merge: str | None = None
    merge_target_file: str | None = None
    done: bool = False


class _Assisted(Operation):
    """What both share; they differ in what the host does."""

    data_type = AssistedData
    answer_type = NoRequest
    point_of_no_return = "change"
    # The status in which the snapshot is for the service meanwhile.
    awaited: str

    @property
    def owes_an_end(self) -> bool:
        return True

    # --- acceptance ------------------------------------------------------------------------------
    def accept(self, ctl: Acceptance, request: CreateRequest | DeleteRequest) -> None:
        device = self.instance.attached(request.volume_id)
        if device.multiattach:
            raise exception.InvalidVolume(reason=f"several servers may have volume {request.volume_id}, and a file "
                                                 "with snapshots is written by one alone")
        if device.encryption is not None:
            raise exception.InvalidVolume(reason=f"volume {request.volume_id} is encrypted, and a file with snapshots "
                                                 "is not decrypted")
        if not ctl.has_outside_volumes():
            raise exception.InvalidVolume(reason="embedded volumes have no snapshots")
        self.data.device = device

    # --- steps -----------------------------------------------------------------------------------
    @step(CONDUCTOR, undo="give_up", external=VOLUMES)
    def take(self, ctl: Control) -> None:
        """The server may have moved, or lost the volume, while this waited, and nobody waits for ever."""
        known = ctl.instance.attached_now(self.data.device)
        self.data.device = known
        ctl.outside_volumes.check_assisted(known, self.data.snapshot_id, self.awaited)

    @step("host", event=_EVENT, undo="look", when_down="wait", deadline=_DEADLINE, results=("done",),
          undo_results=("done",))
    def change(self, host: Host) -> None:
        self.make(host)
        host.result(done=True)

    # Compensated by being done: the guest has these files.
    @step(CONDUCTOR, event=_EVENT, undo="hand_over", external=VOLUMES)
    def hand_over(self, ctl: Control) -> None:
        ctl.outside_volumes.end_assisted(self.data.snapshot_id, self.awaited, done=True)

    def make(self, host: Host) -> None:
        raise NotImplementedError

    # --- compensations ---------------------------------------------------------------------------
    def look(self, host: Host) -> None:
        raise NotImplementedError

    def give_up(self, ctl: Control) -> None:
        ctl.outside_volumes.end_assisted(self.data.snapshot_id, self.awaited, done=self.data.done)

    # --- the end ---------------------------------------------------------------------------------
    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        self.superseded(ctl)


class VolumeSnapshotCreate(_Assisted):
    name = action = "volume_snapshot_create"
    rules = Rules(label="volume_snapshot_create", vm_states=_STATES, lock=False, host="up", beside=True, release=4)
    request_type = CreateRequest
    awaited = "creating"

    def _renewed(self) -> BlockDevice:
        """The device as it is when this has succeeded."""
        device: BlockDevice = self.data.device
        return msgspec.structs.replace(device, connection_info={
            **device.connection_info, "name": self.data.new_file, "format": "qcow2"})

    def make(self, host: Host) -> None:
        host.driver.snapshot_volume(host.instance, host.connected(self._renewed()))

    def look(self, host: Host) -> None:
        files = host.driver.volume_files(host.instance, self.data.device)
        host.result(done=files[:1] == [self.data.new_file])

    def superseded(self, ctl: Control) -> None:
        if self.data.done:
            ctl.volumes.reach(self._renewed())


class VolumeSnapshotDelete(_Assisted):
    name = action = "volume_snapshot_delete"
    kind = "swap"  # hours of copying hold up nothing else
    rules = Rules(label="volume_snapshot_delete", vm_states=_STATES, lock=False, host="up", beside=True, release=4)
    request_type = DeleteRequest
    awaited = "deleting"

    def make(self, host: Host) -> None:
        host.driver.merge_volume(host.instance, self.data.device, self.data.file_to_merge, self.data.merge_target_file,
                                 host.cancelled)

    def look(self, host: Host) -> None:
        host.result(done=host.driver.cancel_merge(host.instance, self.data.device, self.data.file_to_merge,
                                                  self.data.merge_target_file))


# Those for which a volume service waits that makes or deletes a snapshot.
ASSISTED = (VolumeSnapshotCreate.name, VolumeSnapshotDelete.name)
