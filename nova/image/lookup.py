"""Lookup of the images of a request with the rights of the caller.

Hosts download every image that the row of a server names, with the service's own credentials. So an id is stored there
only if the caller may read the image. This includes images that another image names (kernel_id, ramdisk_id)."""

from collections.abc import Sequence

from nova import exception
from nova import image as image_service
from nova.conf import CONF
from nova.context import RequestContext
from nova.objects.images.image import Image
from nova.objects.servers.volume_image import MAPPING, describes_volumes, without_description

# Properties of an image with the ids of kernel and ramdisk -> allowed disk formats.
_BOOT_FILES = {"kernel_id": ("aki", "raw"), "ramdisk_id": ("ari", "raw")}
# Maximum number of characters in all properties, since they are stored with each server and read in lists of servers.
# The property that describes volumes is not stored; the same limit applies to it separately.
_MAX_CHARACTERS = 64 * 1024


def find(ctx: RequestContext, ident: str, trusted: Sequence[str] = ()) -> Image:
    """Return an image that the caller may use, with its certificate if signatures are verified. ``trusted``: ids of
    trusted certificates (empty: those of the operator). Raises InvalidInput, ImageNotActive, ImageUnacceptable,
    ImageBackendUnavailable."""
    image = _show(ctx, ident)
    if describes_volumes(image):
        raise exception.ImageUnacceptable(image_id=ident, reason="it describes volumes")
    return _verified(ctx, image, trusted)


def find_to_boot(ctx: RequestContext, ident: str, trusted: Sequence[str] = ()) -> Image:
    """Return an image as find() does, or an image of volumes without data (nova.objects.servers.volume_image)."""
    image = _show(ctx, ident)
    if not describes_volumes(image):
        return _verified(ctx, image, trusted)
    if trusted:
        raise exception.InvalidInput("trusted_image_certificates are not for servers that boot from volumes.")
    return image


def find_description(ctx: RequestContext, ident: str) -> Image:
    """Return the properties of an image for a guest that boots from another source. The signature is not verified,
    since the data are not used. Raises the exceptions of find()."""
    image = _show(ctx, ident)
    return Image(id=image.id, name=image.name, owner=image.owner, min_ram=image.min_ram,
                 properties=without_description(image.properties))


def _verified(ctx: RequestContext, image: Image, trusted: Sequence[str]) -> Image:
    """Return the image with its certificate if signatures are verified. Raises InvalidInput, ImageUnacceptable."""
    if CONF.glance.verify_glance_signatures:
        from nova.image import signatures

        anchors = trusted or CONF.glance.default_trusted_certificate_ids
        image.certificate = signatures.certificate_of(ctx, image, anchors)
    elif trusted:
        raise exception.InvalidInput("trusted_image_certificates: signatures of images are not verified in this cloud.")
    return image


def _show(ctx: RequestContext, ident: str) -> Image:
    if not ctx.auth_token:  # the rights of the caller are unknown
        raise exception.InvalidInput("Can not find requested image")
    try:
        image = image_service.store().show(ctx, ident, token=ctx.auth_token)
    except (exception.ImageNotFound, exception.ImageNotAuthorized) as error:
        raise exception.InvalidInput("Can not find requested image") from error
    if image.status != "active":
        raise exception.ImageNotActive(image_id=ident)
    if image.properties.get("cinder_encryption_key_id"):
        raise exception.ImageUnacceptable(image_id=ident, reason="it is the encrypted copy of a volume")
    description = len(image.properties.get(MAPPING, ""))
    stored = sum(len(name) + len(value) for name, value in image.properties.items()) - description
    if max(stored, description) > _MAX_CHARACTERS:
        raise exception.ImageUnacceptable(
            image_id=ident, reason=f"its properties have more than {_MAX_CHARACTERS} characters")
    return image


def boot_files(ctx: RequestContext, base: Image | None) -> tuple[str, str]:
    """Return the ids of kernel and ramdisk that an image names ("": none), if the caller may use them. Raises
    InvalidInput, ImageNotActive, ImageUnacceptable."""
    kernel, ramdisk = (_boot_file(ctx, base, name) if base else "" for name in _BOOT_FILES)
    return kernel, ramdisk


def _boot_file(ctx: RequestContext, base: Image, name: str) -> str:
    ident = str(base.properties.get(name) or "")
    if ident in ("", "nokernel"):
        return ""
    if CONF.glance.verify_glance_signatures:  # hosts get no certificate of a kernel or ramdisk
        raise exception.ImageUnacceptable(image_id=base.id, reason=f"the signature of its {name} cannot be verified")
    try:
        image = _show(ctx, ident)
    except exception.InvalidInput as error:
        raise exception.InvalidInput(f"Can not find image {ident}, the {name} of image {base.id}.") from error
    formats, max_mb = _BOOT_FILES[name], int(CONF.compute.kernel_size_limit_mb)
    if image.disk_format not in formats:
        raise exception.ImageUnacceptable(
            image_id=ident, reason=f"the {name} of image {base.id} must be in the format {' or '.join(formats)}")
    if image.size is None or image.size > max_mb << 20:
        raise exception.ImageUnacceptable(
            image_id=ident, reason=f"the {name} of image {base.id} must be at most {max_mb} MiB large")
    return image.id
