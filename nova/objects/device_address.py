"""Where a guest finds its devices: what its metadata say of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from nova.objects.base import Object

# Characters: hosts tell these, and the row of the server keeps them.
_Word = Annotated[str, msgspec.Meta(max_length=64)]


class DeviceAddress(Object, kw_only=True):
    """``device``: the MAC address of an interface (small letters), or what instance.disk_names() calls a disk.

    ``bus``: pci, usb, scsi, ide or none; ``address`` as that bus has it: "0000:00:03.0" (pci), "0:0:1:0" (scsi and
    ide: controller, bus, target, unit), "0:1" (usb: bus, port).
    """

    device: _Word
    bus: _Word = "none"
    address: _Word = "none"


# All devices of a guest.
DeviceAddresses = Annotated[list[DeviceAddress], msgspec.Meta(max_length=512)]
