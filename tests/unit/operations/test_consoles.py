"""Operations that end the consoles of their server: a new operation must be classified here."""

from nova.operations import REGISTRY

# The guest is the same one, where it was, and is not switched off for good.
KEEP = {"build", "reboot_soft", "reboot_hard", "pause", "unpause", "reset_state", "confirm_resize", "attach_volume",
        "detach_volume", "swap_volume", "attach_interface", "detach_interface", "lose_interface", "change_password",
        "trigger_crash_dump", "create_image", "create_volume_image", "create_backup",
        "volume_snapshot_create", "volume_snapshot_delete", "extend_volume", "attach_share", "detach_share"}
END = {"delete", "reclaim", "soft_delete", "restore", "start", "stop", "sync_power", "suspend", "resume", "resize",
       "migrate", "revert_resize", "resume_on_boot", "live_migrate", "evacuate", "rebuild", "rescue", "unrescue",
       "shelve", "shelve_offload", "unshelve"}


def test_every_operation_is_known_to_end_consoles_or_to_leave_them():
    assert {name for name, operation in REGISTRY.items() if operation.ends_consoles} == END
    assert {name for name, operation in REGISTRY.items() if not operation.ends_consoles} == KEEP
