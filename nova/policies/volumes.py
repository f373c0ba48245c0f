"""Policies of volumes, snapshots and attachments."""

from nova.policies.base import MEMBER, READER, SERVICE, rule

RULES = [
    rule("os-assisted-volume-snapshots:create", SERVICE, "Create assisted volume snapshots.",
         "POST /os-assisted-volume-snapshots"),
    rule("os-assisted-volume-snapshots:delete", SERVICE, "Delete assisted volume snapshots.",
         "DELETE /os-assisted-volume-snapshots/{snapshot_id}"),
    rule("os-volumes:list", READER, "List volumes.", "GET /os-volumes"),
    rule("os-volumes:create", MEMBER, "Create volumes.", "POST /os-volumes"),
    rule("os-volumes:detail", READER, "List volumes with details.", "GET /os-volumes/detail"),
    rule("os-volumes:show", READER, "Show volumes.", "GET /os-volumes/{volume_id}"),
    rule("os-volumes:delete", MEMBER, "Delete volumes.", "DELETE /os-volumes/{volume_id}"),
    rule("os-volumes:snapshots:list", READER, "List volume snapshots.", "GET /os-snapshots"),
    rule("os-volumes:snapshots:create", MEMBER, "Create volume snapshots.", "POST /os-snapshots"),
    rule("os-volumes:snapshots:detail", READER, "List volume snapshots with details.", "GET /os-snapshots/detail"),
    rule("os-volumes:snapshots:show", READER, "Show volume snapshots.", "GET /os-snapshots/{snapshot_id}"),
    rule("os-volumes:snapshots:delete", MEMBER, "Delete volume snapshots.", "DELETE /os-snapshots/{snapshot_id}"),
    rule("os-volumes-attachments:index", READER, "List volumes attached to a server.",
         "GET /servers/{server_id}/os-volume_attachments"),
    rule("os-volumes-attachments:create", MEMBER, "Attach a volume to a server.",
         "POST /servers/{server_id}/os-volume_attachments"),
    rule("os-volumes-attachments:show", READER, "Show volumes attached to a server.",
         "GET /servers/{server_id}/os-volume_attachments/{volume_id}"),
    rule("os-volumes-attachments:update", MEMBER, "Change an attachment of a volume.",
         "PUT /servers/{server_id}/os-volume_attachments/{volume_id}"),
    rule("os-volumes-attachments:swap", SERVICE, "Replace an attached volume by another.",
         "PUT /servers/{server_id}/os-volume_attachments/{volume_id}"),
    rule("os-volumes-attachments:delete", MEMBER, "Detach a volume from a server.",
         "DELETE /servers/{server_id}/os-volume_attachments/{volume_id}"),
]
