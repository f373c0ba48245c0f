"""Properties of an image's disk."""

import pytest

from nova.objects.images.image import least_disk
from nova.virt.images.qemuimg import most_bytes

GIB = 1 << 30


@pytest.mark.parametrize("gib", [1, 8, 1000])
def test_a_disk_that_is_full_fits_into_the_flavor_that_it_is_of(gib):
    assert least_disk("qcow2", most_bytes(gib * GIB)) <= gib * GIB
    assert least_disk("qcow2", most_bytes(gib * GIB) + (1 << 20)) > gib * GIB


def test_a_raw_image_is_the_disk():
    assert [least_disk(kind, GIB + 1) for kind in ("raw", "iso", None)] == [GIB + 1] * 3
    assert least_disk("qcow2", 1000) == 0
