"""CPUs of a host as reported by libvirt; its test driver reports those of this machine."""

from __future__ import annotations

import libvirt

from nova.virt.libvirt.node import inventory


def test_the_cpus_of_a_host_are_those_of_the_machine() -> None:
    connection = libvirt.open("test:///default")
    try:
        first, second = inventory.cpu(connection), inventory.cpu(connection)
    finally:
        connection.close()
    assert first.frequency == 1400  # MHz: that of its made-up host
    assert first.user > 0
    assert first.idle > 0
    assert (second.user, second.kernel, second.idle) >= (first.user, 0, 0)


def test_a_time_that_a_machine_does_not_count_is_none() -> None:
    class Connection:
        def getCPUStats(self, _cpu: int) -> dict[str, int]:
            return {"user": 5, "kernel": 6, "idle": 7}

        def getInfo(self) -> list[object]:
            return ["aarch64", 1, 1, 0, 1, 1, 1, 1]

    found = inventory.cpu(Connection())
    assert (found.frequency, found.user, found.kernel, found.idle, found.iowait) == (0, 5, 6, 7, 0)
