"""CPUs of a host as reported by libvirt; its test driver reports those of this machine."""

from __future__ import annotations

import libvirt

from nova.virt.libvirt.node import inventory


def test_host_cpu_statistics_are_read_from_libvirt() -> None:
    connection = libvirt.open("test:///default")
    try:
        first, second = inventory.cpu(connection), inventory.cpu(connection)
    finally:
        connection.close()
    assert first.frequency == 1400  # MHz, of the test driver's fake host
    assert first.user > 0
    assert first.idle > 0
    assert (second.user, second.kernel, second.idle) >= (first.user, 0, 0)


def test_missing_cpu_time_is_zero() -> None:
    class Connection:
        def getCPUStats(self, _cpu: int) -> dict[str, int]:
            return {"user": 5, "kernel": 6, "idle": 7}

        def getInfo(self) -> list[object]:
            return ["aarch64", 1, 1, 0, 1, 1, 1, 1]

    found = inventory.cpu(Connection())
    assert (found.frequency, found.user, found.kernel, found.idle, found.iowait) == (0, 5, 6, 7, 0)
