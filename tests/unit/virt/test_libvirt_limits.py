"""Resource limits of a flavor: accepted if and only if libvirt and QEMU accept them."""

from __future__ import annotations

import collections
import itertools

import libvirt
import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.requirements.hardware import hardware
from nova.objects.requirements.properties import Properties

_TUNED = {"quota:cpu_shares": "shares", "quota:cpu_period": "period", "quota:cpu_quota": "quota"}
_EDGES = (0, 1, 2, 999, 1000, 10**6, 10**6 + 1, 262_144, 262_145, 17_592_186_044_415, 17_592_186_044_416, 2**63 - 1)
_RATES = [f"{which}_{what}_sec" for which in ("total", "read", "write") for what in ("bytes", "iops")]


def _is_known_to_libvirt(tune: str, disk: str, device: str) -> bool:
    """Return True if libvirt's parser accepts a domain with these elements (the test driver needs no daemon)."""
    connection = libvirt.open("test:///default")
    try:
        connection.defineXML(
            f"<domain type='test'><name>a</name><memory>1024</memory><vcpu>1</vcpu><cputune>{tune}</cputune><os>"
            "<type>hvm</type></os><devices><disk type='file' device='disk'><source file='/a'/>"
            f"<target dev='vda' bus='virtio'/><iotune>{disk}</iotune></disk>{device}</devices></domain>").undefine()
    except libvirt.libvirtError:
        return False
    finally:
        connection.close()
    return True


def _is_accepted(specs: dict[str, str]) -> bool:
    try:
        hardware(Properties(Flavor(flavorid="1", name="n", memory_mb=64, vcpus=1, extra_specs=specs), None))
    except exception.InvalidInput as error:
        return not any(name in error.message for name in specs)
    return True


def test_flavor_limits_are_accepted_if_and_only_if_libvirt_accepts_them() -> None:
    verdicts: collections.Counter[bool] = collections.Counter()
    for (name, tag), value in itertools.product(_TUNED.items(), _EDGES):
        fits = _is_known_to_libvirt(f"<{tag}>{value}</{tag}>", "", "")
        assert _is_accepted({name: str(value)}) == fits, (name, value)
        verdicts[fits] += 1
    for one, two in itertools.combinations(_RATES, 2):
        for values in ((5, 5), (5, 0), (0, 5)):
            fits = _is_known_to_libvirt("", f"<{one}>{values[0]}</{one}><{two}>{values[1]}</{two}>", "")
            specs = {f"quota:disk_{name}": str(value) for name, value in zip((one, two), values, strict=True)}
            assert _is_accepted(specs) == fits, specs
            verdicts[fits] += 1
    for size, period in ((1, 1), (2**32 - 1, 1), (2**32, 1), (1, 2**32 - 1), (1, 2**32)):
        fits = _is_known_to_libvirt("", "", f"<rng model='virtio'><rate bytes='{size}' period='{period}'/>"
                                            "<backend model='random'>/dev/urandom</backend></rng>")
        assert _is_accepted({"hw_rng:rate_bytes": str(size), "hw_rng:rate_period": str(period)}) == fits, (size, period)
        verdicts[fits] += 1
    print(f"accepted and refused: {dict(verdicts)}")
    assert min(verdicts[True], verdicts[False]) > 10


@pytest.mark.parametrize("name", _RATES)
def test_disk_rate_above_the_qemu_maximum_is_refused_by_name(name: str) -> None:
    """QEMU refuses more than 10^15 when the guest starts; libvirt accepts the value."""
    assert _is_accepted({f"quota:disk_{name}": str(10**15)})
    assert not _is_accepted({f"quota:disk_{name}": str(10**15 + 1)})
