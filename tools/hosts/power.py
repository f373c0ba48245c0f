"""The power supply of a host, or of the switch of a site, which is on while this program runs.

    power.py host DIRECTORY      power.py switch DIRECTORY

Boots the host in its own namespaces, connects its cables and waits. The end of this program, by any signal, is a power
loss. ``DIRECTORY/running`` has the id of the first process while the host or switch is usable.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import NoReturn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tools.hosts import cgroups, kernel
from tools.hosts.host import Host
from tools.hosts.switch import Switch

_BOOT = str(pathlib.Path(__file__).with_name("boot.sh"))


def power_host(directory: pathlib.Path) -> NoReturn:
    host = Host.load(directory)
    host.forget()
    cgroups.make(host.group)
    reader, writer = os.pipe()
    kernel.unshare("pid")

    def boot() -> NoReturn:
        os.dup2(writer, 1)
        cgroups.join(host.group)
        kernel.unshare("cgroup", "ipc", "uts", "net", "mnt")
        cgroups.join(f"{host.group}/{cgroups.LEAF}")
        os.chdir("/")
        os.execve("/bin/sh", ["sh", _BOOT, str(directory)], {**os.environ, **host.boot_environment()})  # noqa: S606

    child = kernel.spawn(boot)
    kernel.enter(os.getpid(), "pid")  # further children are outside of the host
    os.close(writer)
    with os.fdopen(reader) as pipe:
        booted = pipe.readline() == "booted\n"
    if booted:
        switch = Switch.load(directory.parent / "switch")
        wait_for_switch(switch)
        switch.plug(host.number, child)
        host.remember(child)
    kernel.attend(child, kill=True)


def power_switch(directory: pathlib.Path) -> NoReturn:
    switch = Switch.load(directory)
    switch.forget()
    reader, writer = os.pipe()

    def run() -> NoReturn:
        kernel.unshare("net")
        os.write(writer, b".")
        while True:
            time.sleep(1e6)

    child = kernel.spawn(run)
    os.close(writer)
    if os.read(reader, 1):
        switch.set_up(child)
        switch.remember(child)
    kernel.attend(child, kill=True)


def wait_for_switch(switch: Switch) -> None:
    """Wait up to 20 s for the switch, since a supervisor may start it at the same time."""
    deadline = time.monotonic() + 20
    while not switch.usable() and time.monotonic() < deadline:
        time.sleep(0.05)


def main() -> NoReturn:
    kind, directory = sys.argv[1:]
    (power_host if kind == "host" else power_switch)(pathlib.Path(directory))


if __name__ == "__main__":
    main()
