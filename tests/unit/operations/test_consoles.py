"""Operations that close the consoles of the server. Every new operation must be classified here."""

from nova.operations import REGISTRY

# The guest stays on its host and is not switched off permanently.
KEEP = {"build", "reboot_soft", "reboot_hard", "pause", "unpause", "reset_state", "confirm_resize", "attach_volume",
        "detach_volume", "swap_volume", "attach_interface", "detach_interface", "lose_interface", "change_password",
        "trigger_crash_dump", "create_image", "create_volume_image", "create_backup",
        "volume_snapshot_create", "volume_snapshot_delete", "extend_volume", "attach_share", "detach_share"}
END = {"delete", "reclaim", "soft_delete", "restore", "start", "stop", "sync_power", "suspend", "resume", "resize",
       "migrate", "revert_resize", "resume_on_boot", "live_migrate", "evacuate", "rebuild", "rescue", "unrescue",
       "shelve", "shelve_offload", "unshelve"}


def test_every_operation_is_classified_as_closing_or_keeping_consoles():
    assert {name for name, operation in REGISTRY.items() if operation.ends_consoles} == END
    assert {name for name, operation in REGISTRY.items() if not operation.ends_consoles} == KEEP
