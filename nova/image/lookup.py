"""The images that a request leads to, looked at with the caller's own rights: a host fetches no others.

Hosts fetch with the service's credentials whatever image a server's row names. So an id gets there only when whoever
asks for the server was shown the image, also where it is another image that names it (kernel_id, ramdisk_id).
"""

from __future__ import annotations

from collections.abc import Sequence

from nova import exception, image
from nova.conf import CONF
from nova.context import RequestContext
from nova.objects.image import Image
from nova.objects.volume_image import MAPPING, describes_volumes, without_description

# What an image names that boots from a kernel: in which formats it may be. "nokernel": none.
_BOOT_FILES = {"kernel_id": ("aki", "raw"), "ramdisk_id": ("ari", "raw")}
_NONE = ("", "nokernel")
# Characters of all properties (Glance has 128 at most, if it is not told otherwise): each server keeps them, lists read
# many servers at a time. What describes volumes is not kept, and has as many for itself.
_PROPERTIES = 64 * 1024


def find(ctx: RequestContext, ident: str, trusted: Sequence[str] = ()) -> Image:
    """An image that the caller may use, with its certificate where signatures are verified.

    ``trusted``: ids of the certificates that its own has to come from (none: what the operator trusts).
    Raises InvalidInput, ImageNotActive, ImageUnacceptable, ImageBackendUnavailable.
    """
    found = _show(ctx, ident)
    if describes_volumes(found):
        raise exception.ImageUnacceptable(image_id=ident, reason="it describes volumes")
    return _verified(ctx, found, trusted)


def find_to_boot(ctx: RequestContext, ident: str, trusted: Sequence[str] = ()) -> Image:
    """As find(), and also one that has no data and describes volumes (:mod:`nova.objects.volume_image`)."""
    found = _show(ctx, ident)
    if not describes_volumes(found):
        return _verified(ctx, found, trusted)
    if trusted:
        raise exception.InvalidInput("trusted_image_certificates are not for servers that boot from volumes.")
    return found


def find_description(ctx: RequestContext, ident: str) -> Image:
    """An image of whose data and volumes nothing is used: what it says of a guest that boots from something else.

    Raises as find(); signatures are of data, and not looked at.
    """
    found = _show(ctx, ident)
    return Image(id=found.id, name=found.name, owner=found.owner, min_ram=found.min_ram,
                 properties=without_description(found.properties))


def _verified(ctx: RequestContext, found: Image, trusted: Sequence[str]) -> Image:
    """Raises InvalidInput, ImageUnacceptable."""
    if CONF.glance.verify_glance_signatures:
        from nova.image import signatures

        anchors = trusted or CONF.glance.default_trusted_certificate_ids
        found.certificate = signatures.certificate_of(ctx, found, anchors)
    elif trusted:
        raise exception.InvalidInput("trusted_image_certificates: signatures of images are not verified in this cloud.")
    return found


def _show(ctx: RequestContext, ident: str) -> Image:
    if not ctx.auth_token:  # nobody's eyes see it
        raise exception.InvalidInput("Can not find requested image")
    try:
        found = image.store().show(ctx, ident, token=ctx.auth_token)
    except (exception.ImageNotFound, exception.ImageNotAuthorized) as error:
        raise exception.InvalidInput("Can not find requested image") from error
    if found.status != "active":
        raise exception.ImageNotActive(image_id=ident)
    if found.properties.get("cinder_encryption_key_id"):
        raise exception.ImageUnacceptable(image_id=ident, reason="it is the encrypted copy of a volume")
    described = len(found.properties.get(MAPPING, ""))
    kept = sum(len(name) + len(value) for name, value in found.properties.items()) - described
    if max(kept, described) > _PROPERTIES:
        raise exception.ImageUnacceptable(
            image_id=ident, reason=f"its properties have more than {_PROPERTIES} characters")
    return found


def boot_files(ctx: RequestContext, of: Image | None) -> tuple[str, str]:
    """The ids of the kernel and the ramdisk that an image names ("": none), which the caller may use, too.

    Raises InvalidInput, ImageNotActive, ImageUnacceptable.
    """
    kernel, ramdisk = (_boot_file(ctx, of, name) if of else "" for name in _BOOT_FILES)
    return kernel, ramdisk


def _boot_file(ctx: RequestContext, of: Image, name: str) -> str:
    ident = str(of.properties.get(name) or "")
    if ident in _NONE:
        return ""
    if CONF.glance.verify_glance_signatures:  # whoever fetches it knows no certificate of it
        raise exception.ImageUnacceptable(image_id=of.id, reason=f"the signature of its {name} cannot be verified")
    try:
        found = _show(ctx, ident)
    except exception.InvalidInput as error:
        raise exception.InvalidInput(f"Can not find image {ident}, the {name} of image {of.id}.") from error
    formats, most = _BOOT_FILES[name], int(CONF.compute.kernel_size_limit_mb)
    if found.disk_format not in formats:
        raise exception.ImageUnacceptable(
            image_id=ident, reason=f"the {name} of image {of.id} must be in the format {' or '.join(formats)}")
    if found.size is None or found.size > most << 20:
        raise exception.ImageUnacceptable(
            image_id=ident, reason=f"the {name} of image {of.id} must be at most {most} MiB large")
    return found.id
