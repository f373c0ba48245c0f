"""Operations on servers, one module per operation. Read :mod:`nova.operations.framework.base` first."""

from nova.operations import power
from nova.operations.assisted_snapshots import VolumeSnapshotCreate, VolumeSnapshotDelete
from nova.operations.build import Build
from nova.operations.delete import Delete
from nova.operations.evacuate import Evacuate
from nova.operations.extend_volume import ExtendVolume
from nova.operations.framework.base import Operation
from nova.operations.interfaces import AttachInterface, DetachInterface, LoseInterface
from nova.operations.live_migrate import LiveMigrate
from nova.operations.password import ChangePassword
from nova.operations.rebuild import Rebuild
from nova.operations.rescue import Rescue, Unrescue
from nova.operations.reset_state import ResetState
from nova.operations.resize import ConfirmResize, Migrate, Resize, RevertResize
from nova.operations.shares import AttachShare, DetachShare
from nova.operations.shelve import Shelve, ShelveOffload
from nova.operations.snapshot import CreateBackup, CreateImage
from nova.operations.soft_delete import Reclaim, Restore, SoftDelete
from nova.operations.swap_volume import SwapVolume
from nova.operations.unshelve import Unshelve
from nova.operations.volume_image import CreateVolumeImage
from nova.operations.volumes import AttachVolume, DetachVolume

REGISTRY: dict[str, type[Operation]] = {operation.name: operation for operation in (
    Build, Delete, power.Start, power.ResumeOnBoot, power.Stop, power.SyncPower, power.RebootSoft, power.RebootHard,
    power.Pause, power.Unpause, power.Suspend, power.Resume, ResetState, Resize, Migrate, ConfirmResize, RevertResize,
    LiveMigrate, Evacuate, AttachVolume, DetachVolume, SwapVolume, AttachInterface, DetachInterface, LoseInterface,
    SoftDelete, Restore, Reclaim, ChangePassword, power.TriggerCrashDump, Rebuild, Rescue, Unrescue, CreateImage,
    CreateVolumeImage, CreateBackup, Shelve, ShelveOffload, Unshelve, VolumeSnapshotCreate, VolumeSnapshotDelete,
    ExtendVolume, AttachShare, DetachShare)}
