"""Instance states and the API status derived from them."""

# vm_state
ACTIVE, BUILDING, PAUSED, SUSPENDED, STOPPED = "active", "building", "paused", "suspended", "stopped"
RESCUED, RESIZED, SOFT_DELETED, DELETED, ERROR = "rescued", "resized", "soft-delete", "deleted", "error"
SHELVED, SHELVED_OFFLOADED = "shelved", "shelved_offloaded"

# power_state
NOSTATE, RUNNING, POWER_PAUSED = 0, 1, 3
SHUTDOWN, CRASHED, POWER_SUSPENDED = 4, 6, 7
POWER_STATES = {NOSTATE: "nostate", RUNNING: "running", POWER_PAUSED: "paused", SHUTDOWN: "shutdown",
                CRASHED: "crashed", POWER_SUSPENDED: "suspended"}

# power_state -> vm_state
_VM_STATES = {RUNNING: ACTIVE, SHUTDOWN: STOPPED, POWER_PAUSED: PAUSED, POWER_SUSPENDED: SUSPENDED}

# task_state
SCHEDULING, NETWORKING = "scheduling", "networking"
BLOCK_DEVICE_MAPPING, SPAWNING = "block_device_mapping", "spawning"
DELETING, SOFT_DELETING, RESTORING = "deleting", "soft-deleting", "restoring"
UPDATING_PASSWORD = "updating_password"  # noqa: S105
POWERING_OFF, POWERING_ON = "powering-off", "powering-on"
REBOOTING, REBOOT_PENDING, REBOOT_STARTED = "rebooting", "reboot_pending", "reboot_started"
REBOOTING_HARD = "rebooting_hard"
REBOOT_PENDING_HARD = "reboot_pending_hard"
REBOOT_STARTED_HARD = "reboot_started_hard"
PAUSING, UNPAUSING = "pausing", "unpausing"
SUSPENDING, RESUMING = "suspending", "resuming"
RESCUING, UNRESCUING = "rescuing", "unrescuing"
IMAGE_SNAPSHOT_PENDING, IMAGE_PENDING_UPLOAD = "image_snapshot_pending", "image_pending_upload"
IMAGE_UPLOADING, IMAGE_BACKUP = "image_uploading", "image_backup"
SHELVING = "shelving"
SHELVING_IMAGE_PENDING_UPLOAD = "shelving_image_pending_upload"
SHELVING_IMAGE_UPLOADING = "shelving_image_uploading"
SHELVING_OFFLOADING = "shelving_offloading"
UNSHELVING = "unshelving"
REBUILDING = "rebuilding"
REBUILD_BLOCK_DEVICE_MAPPING = "rebuild_block_device_mapping"
REBUILD_SPAWNING = "rebuild_spawning"
RESIZE_PREP, RESIZE_MIGRATING = "resize_prep", "resize_migrating"
RESIZE_FINISH, RESIZE_REVERTING = "resize_finish", "resize_reverting"
MIGRATING = "migrating"

_RESIZE = dict.fromkeys(("resize_prep", "resize_migrating", "resize_migrated", "resize_finish"), "RESIZE")
_REBUILD = dict.fromkeys(("rebuilding", "rebuild_block_device_mapping", "rebuild_spawning"), "REBUILD")

# vm_state -> {task_state or "default": status}
STATUS: dict[str, dict[str, str]] = {
    ACTIVE: {"default": "ACTIVE", REBOOTING: "REBOOT", REBOOT_PENDING: "REBOOT", REBOOT_STARTED: "REBOOT",
             REBOOTING_HARD: "HARD_REBOOT", REBOOT_PENDING_HARD: "HARD_REBOOT", REBOOT_STARTED_HARD: "HARD_REBOOT",
             UPDATING_PASSWORD: "PASSWORD", MIGRATING: "MIGRATING", **_REBUILD, **_RESIZE},
    BUILDING: {"default": "BUILD"},
    STOPPED: {"default": "SHUTOFF", **_RESIZE, **_REBUILD},
    RESIZED: {"default": "VERIFY_RESIZE", "resize_reverting": "REVERT_RESIZE"},
    PAUSED: {"default": "PAUSED", MIGRATING: "MIGRATING"},
    SUSPENDED: {"default": "SUSPENDED"},
    RESCUED: {"default": "RESCUE"},
    ERROR: {"default": "ERROR", **_REBUILD},
    DELETED: {"default": "DELETED"},
    SOFT_DELETED: {"default": "SOFT_DELETED"},
    SHELVED: {"default": "SHELVED"},
    SHELVED_OFFLOADED: {"default": "SHELVED_OFFLOADED"},
}

PROGRESS_STATUSES = frozenset({"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"})


def vm_state_of(vm_state: str | None, power_state: int) -> str | None:
    """Return the vm_state for the power state of a guest, or None if the vm_state does not follow the power state
    (ERROR, ...)."""
    return _VM_STATES.get(power_state) if vm_state in _VM_STATES.values() else None


def status(vm_state: str | None, task_state: str | None) -> str:
    """Return the API status for these states (``UNKNOWN`` for an unknown vm_state)."""
    by_task = STATUS.get(vm_state or "")
    if by_task is None:
        return "UNKNOWN"
    return by_task.get(task_state or "default", by_task["default"])


def states_of(status_name: str) -> tuple[list[str], list[str]]:
    """Return the vm_states and task_states with API status ``status_name``; ([], []) if there are none. task_states is
    empty if one of the vm_states has this status by default."""
    vm_states: list[str] = []
    task_states: list[str] = []
    by_default = False
    for vm_state, by_task in STATUS.items():
        tasks = [task for task, shown in by_task.items() if shown == status_name.upper()]
        if tasks:
            vm_states.append(vm_state)
            by_default = by_default or "default" in tasks
            task_states.extend(task for task in tasks if task != "default")
    return vm_states, [] if by_default else task_states
