"""Disk sizes of images."""

import pytest

from nova.objects.images.image import least_disk
from nova.virt.images.qemuimg import most_bytes

GIB = 1 << 30


@pytest.mark.parametrize("gib", [1, 8, 1000])
def test_image_of_a_full_disk_fits_its_flavor(gib):
    assert least_disk("qcow2", most_bytes(gib * GIB)) <= gib * GIB
    assert least_disk("qcow2", most_bytes(gib * GIB) + (1 << 20)) > gib * GIB


def test_raw_image_size_is_the_disk_size():
    assert [least_disk(kind, GIB + 1) for kind in ("raw", "iso", None)] == [GIB + 1] * 3
    assert least_disk("qcow2", 1000) == 0
