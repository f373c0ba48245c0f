"""Creation of notifications of events, in the configured formats."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from oslo_config import cfg

from nova import context
from nova.conf import CONF
from nova.notifications import legacy, versioned
from nova.objects.accounts.notification import Notification
from nova.objects.accounts.usage import audit_period
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_group import ServerGroup

ERROR = "error"


@dataclasses.dataclass(frozen=True)
class NotificationSettings:
    """Formats and contents of notifications."""

    versioned: bool = False
    unversioned: bool = False
    volumes: bool = False
    shares: bool = False
    level: str = "INFO"
    period: str = "month"

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> NotificationSettings:
        options = conf.notifications
        return cls(versioned=options.notification_format != "unversioned",
                   unversioned=options.notification_format != "versioned", volumes=options.bdms_in_notifications,
                   shares=options.include_share_mapping, level=options.default_level,
                   period=conf.instance_usage_audit_period)


@dataclasses.dataclass(frozen=True)
class ServerEvent:
    """An event of a server. ``name``: the versioned name without the prefix "instance."; ``phase``: start, end, error
    or ""; ``more``: fields of the payload that are specific to the event."""

    name: str
    phase: str
    publisher: str
    instance: Instance
    failure: Failure | None = None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


# Event -> name and version of its payload. Default: InstanceActionPayload.
_ACTION = ("InstanceActionPayload", "1.9")
_PAYLOADS = {
    "create": ("InstanceCreatePayload", "1.13"), "exists": ("InstanceExistsPayload", "2.1"),
    **dict.fromkeys(("rebuild", "rebuild_scheduled"), ("InstanceActionRebuildPayload", "1.10")),
    "rescue": ("InstanceActionRescuePayload", "1.4"), "resize_prep": ("InstanceActionResizePrepPayload", "1.4"),
    "snapshot": ("InstanceActionSnapshotPayload", "1.10"), "update": ("InstanceUpdatePayload", "2.1"),
    **dict.fromkeys(("share_attach", "share_detach"), ("InstanceActionSharePayload", "1.0")),
    **dict.fromkeys(("volume_attach", "volume_detach"), ("InstanceActionVolumePayload", "1.7")),
    "volume_swap": ("InstanceActionVolumeSwapPayload", "1.9"),
}
# Columns of a server whose changes cause the notification instance.update.
NOTIFIED_COLUMNS = frozenset({
    "display_name", "display_description", "hostname", "host", "node", "availability_zone", "flavor", "image_ref",
    "image", "key", "kernel_id", "ramdisk_id", "launched_at", "terminated_at", "vm_state", "power_state", "task_state",
    "network_info", "block_devices", "shares", "metadata", "locked_by", "locked_reason", "disk_config", "tags",
    "deleted"})
# Events that report the state of a server, not an action: their payloads have no fault.
_STATES = frozenset({"exists", "update"})
# Event -> function that returns additional fields of the payload from the server.
_MORE_FIELDS: dict[str, Callable[[Instance], dict[str, Any]]] = {
    "create": lambda of: {"keypairs": versioned.keypairs(of), "tags": sorted(of.tags),
                          "instance_name": of.name_by(CONF.instance_name_template),
                          "trusted_image_certificates": of.trusted_certs},
    "rebuild": lambda of: {"trusted_image_certificates": of.trusted_certs},
    "rebuild_scheduled": lambda of: {"trusted_image_certificates": of.trusted_certs},
    "update": lambda of: {"tags": sorted(of.tags)},
}


class NotificationBuilder:
    """Creates notifications on behalf of the user of ``ctx``, in the formats of ``settings``."""

    def __init__(self, settings: NotificationSettings, ctx: context.RequestContext) -> None:
        self.settings = settings
        self.now = utcnow()
        values = {"request_id": ctx.request_id, "user_id": ctx.user_id, "project_id": ctx.project_id}
        self.context: dict[str, str] = {name: value for name, value in values.items() if value}

    def server(self, event: ServerEvent) -> list[Notification]:
        """Return the notifications of an event of a server."""
        notifications, subject, by = [], event.instance.uuid, event.publisher
        priority = ERROR.upper() if event.phase == ERROR else "INFO"
        if self.settings.versioned:
            name = ".".join(filter(None, ("instance", event.name, event.phase)))
            notifications.append(self.message(subject, name, by, self._payload(event), True, priority))
        if self.settings.unversioned and (legacy_name := legacy.event_of(event.name, event.phase)):
            payload = legacy.instance(event.instance, event.more, event.failure, self.settings.volumes)
            notifications.append(self.message(subject, legacy_name, by, payload, False, priority))
        return notifications

    def _payload(self, event: ServerEvent) -> dict[str, Any]:
        name, version = _PAYLOADS.get(event.name, _ACTION)
        data = versioned.instance(event.instance, self.now, self.context, self.settings.volumes, self.settings.shares)
        if event.name not in _STATES:
            data["fault"] = versioned.failure(event.failure) if event.failure else None
        if event.name in _MORE_FIELDS:
            data |= _MORE_FIELDS[event.name](event.instance)
        return versioned.wrapped(name, version, {**data, **event.more})

    def message(self, subject: str, event_type: str, publisher: str, payload: dict[str, Any], is_versioned: bool,
                priority: str = "INFO") -> Notification:
        return Notification(
            message_id=new_uuid(), subject=subject, versioned=is_versioned, event_type=event_type, priority=priority,
            publisher_id=publisher, payload=payload, context=self.context, created_at=self.now)

    def resource(self, event: str, subject: str, payload: dict[str, Any], old_name: str = "",
                 old_payload: dict[str, Any] | None = None, by: str = "", failed: bool = False) -> list[Notification]:
        """Return the notifications of an event of another resource. ``old_name``, ``old_payload``: event type and
        payload in the unversioned format, if there is one. ``by``: the publisher (default: the API). ``failed``: True
        for the priority ERROR."""
        notifications, by = [], by or publisher("nova-api", CONF.host)
        priority = ERROR.upper() if failed or payload["nova_object.name"] == "ExceptionPayload" else "INFO"
        if self.settings.versioned:
            notifications.append(self.message(subject, event, by, payload, True, priority))
        if self.settings.unversioned and old_name:
            notifications.append(self.message(subject, old_name, by, old_payload or {}, False, priority))
        return notifications

    def members_added(self, group: ServerGroup, members: Sequence[str]) -> list[Notification]:
        """Return the notifications of new servers in a group, one for each server."""
        groups = [msgspec.structs.replace(group, members=[member]) for member in members]
        return [notification for of in groups for notification in self.resource(
            "server_group.add_member", of.uuid, versioned.server_group(of), "servergroup.addmember",
            {"server_group_id": of.uuid, "instance_uuids": of.members})]

    def exists(self, instance: Instance, publisher: str, begin: datetime.datetime,
               ending: datetime.datetime) -> list[Notification]:
        """Return the notifications that a server existed in an audit period."""
        return self.server(ServerEvent("exists", "", publisher, instance, more={
            "audit_period": versioned.audit_period(begin, ending)}))

    # --- updates ---------------------------------------------------------------------------------------
    def updated(self, instance: Instance, publisher: str, old: tuple[str | None, str | None], notify_on: str,
                old_name: str | None = None) -> list[Notification]:
        """Return the notifications of an update of a server. ``old``: vm_state and task_state before the update.
        ``notify_on``: vm_state or vm_and_task_state; if no such state changed, old states equal the new ones."""
        new = (instance.vm_state, instance.task_state)
        changed = old[0] != new[0] or (notify_on == "vm_and_task_state" and old[1] != new[1])
        old_state, old_task = old if changed else new
        states = {"old_state": old_state, "state": new[0], "old_task_state": old_task, "new_task_state": new[1]}
        _begin, begin = audit_period(self.settings.period, self.now)
        return self.server(ServerEvent("update", "", publisher, instance, more={
            "state_update": versioned.wrapped("InstanceStateUpdatePayload", "1.0", states),
            "audit_period": versioned.audit_period(begin, self.now), "old_display_name": old_name}))


def publisher(binary: str, host: str | None) -> str:
    return f"{binary}:{host or ''}"
