"""Bus addresses of a guest's devices, as shown in its metadata."""

from typing import Annotated

import msgspec

from nova.objects.base import Object

# Maximum number of characters. Hosts report these texts, and the server's row stores them.
_Word = Annotated[str, msgspec.Meta(max_length=64)]


class DeviceAddress(Object, kw_only=True):
    """``device``: MAC address of an interface (lower case), or name of a disk as in instance.disk_names().

    ``bus``: pci, usb, scsi, ide or none. ``address`` in the format of that bus: "0000:00:03.0" (pci), "0:0:1:0" (scsi
    and ide: controller, bus, target, unit), "0:1" (usb: bus, port).
    """

    device: _Word
    bus: _Word = "none"
    address: _Word = "none"


# All devices of a guest.
DeviceAddresses = Annotated[list[DeviceAddress], msgspec.Meta(max_length=512)]
