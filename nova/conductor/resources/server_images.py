"""Snapshot and backup images of a server, for the external steps of its operations. The image service is called
immediately, with Nova's own rights, outside any transaction. Nova chooses the id of an image, so that a retried step
finds the image that its earlier try created."""

import logging
import tempfile
from collections.abc import Mapping

from nova import context, exception, image
from nova.conductor.core import StepTransaction
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.objects.servers.instance import Instance

LOG = logging.getLogger(__name__)

# Properties of a server's image that are never copied to its snapshot.
_NEVER = frozenset({"img_signature", "img_signature_hash_method", "img_signature_key_type",
                    "img_signature_certificate_uuid", "cinder_encryption_key_id",
                    "cinder_encryption_key_deletion_policy"})
_RESERVED = "os_glance"
# Fields of an image besides its properties. The request for a snapshot must not set them.
_CORE = frozenset({*Image.__struct_fields__, "self", "file", "schema", "tags", "locations", "direct_url",
                   "os_hash_algo", "os_hash_value", "os_hidden", "stores"})

BACKUP = "backup"
_FORMAT = "qcow2"  # the format of an image without data


class ServerImages:
    """A :class:`nova.operations.framework.resource_contexts.ServerImages`."""

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction

    def describe(self, name: str, more: Mapping[str, str], kind: str = "snapshot") -> Image:
        ctx, instance = self._transaction.ctx, self._transaction.instance
        for key in more:
            if key in _CORE or key.startswith(_RESERVED):
                raise exception.InvalidInput(reason=f"metadata: users cannot set the image property {key}")
        base, owner = instance.image, ctx.project_id or instance.project_id
        foreign = owner != instance.project_id
        return Image(
            id=new_uuid(), name=name, status="queued", owner=owner, visibility="shared" if foreign else "private",
            members=[instance.project_id] if foreign else [], min_ram=base.min_ram if base else 0,
            min_disk=max(base.min_disk if base else 0, instance.flavor.root_gb),
            properties={**_inherited(base), **_own(ctx, instance, owner), "image_type": kind, **more})

    def make(self, wanted: Image) -> None:
        image.store().create(self._transaction.ctx, wanted)

    def fill(self, image_id: str, properties: Mapping[str, str]) -> None:
        store, ctx = image.store(), self._transaction.ctx
        store.set_properties(ctx, image_id, properties, replace=False)
        with tempfile.NamedTemporaryFile() as nothing:
            store.upload(ctx, image_id, nothing.name, _FORMAT)

    def get(self, image_id: str) -> Image:
        return image.store().show(self._transaction.ctx, image_id)

    def delete(self, image_id: str) -> None:
        try:
            image.store().delete(self._transaction.ctx, image_id)
        except exception.ImageNotFound:
            LOG.debug("Image %s was already deleted", image_id)
        except exception.ImageNotAuthorized:
            LOG.warning("[instance: %s] Image %s is protected and is not deleted",
                        self._transaction.instance.uuid, image_id)
        except exception.Conflict:
            LOG.warning("[instance: %s] Image %s is in use and is not deleted",
                        self._transaction.instance.uuid, image_id)

    def rotate(self, newest: Image, keep: int) -> None:
        wanted = {"image_type": BACKUP, "backup_type": newest.properties["backup_type"],
                  "instance_uuid": self._transaction.instance.uuid}
        images = image.store().index(self._transaction.ctx, {**wanted, "owner": newest.owner or ""})
        # check again before the deletion: the service may ignore filters
        backups = [backup for backup in images
                   if backup.owner == newest.owner and wanted.items() <= backup.properties.items()]
        backups.sort(key=lambda backup: backup.id != newest.id)
        for backup in backups[keep:]:
            self.delete(backup.id)


def _inherited(base: Image | None) -> dict[str, str]:
    """Return the properties that a snapshot inherits. Bootable volumes may have properties named like image fields."""
    left_out = _CORE.union(_NEVER, CONF.non_inheritable_image_properties)
    return {name: value for name, value in (base.properties if base else {}).items()
            if name not in left_out and not name.startswith(_RESERVED)}


def _own(ctx: context.RequestContext, instance: Instance, owner: str) -> dict[str, str]:
    properties = {"base_image_ref": instance.image_ref, "boot_roles": ",".join(ctx.roles), "image_location": "snapshot",
                  "image_state": "available", "instance_uuid": instance.uuid, "owner_id": owner,
                  "owner_project_name": ctx.project_name, "owner_user_name": ctx.user_name,
                  "user_id": ctx.user_id or instance.user_id}
    return {name: value for name, value in properties.items() if value}
