"""Tap devices of guests. The network back end creates the bridges and the packet filters, by the names of devices."""

import os
import subprocess
from collections.abc import Iterable, Sequence

from nova import exception
from nova.virt.uml.definition import Nic

_TIMEOUT = 60


def ensure(nics: Sequence[Nic], uid: int | None) -> None:
    """Create the tap devices, to which only the user ``uid`` may attach. Existing devices are replaced. Raises
    NetworkSetupError."""
    remove(nics)
    lines = []
    for nic in nics:
        owner = f" user {uid} group {uid}" if uid is not None else ""
        lines += [f"tuntap add dev {nic.device} mode tap{owner}",
                  f"link set dev {nic.device} mtu {nic.mtu} addrgenmode none master {nic.bridge} up"]
    _ip(lines)


def remove(nics: Iterable[Nic]) -> None:
    """Remove the tap devices that exist."""
    _ip([f"link del dev {nic.device}" for nic in nics if os.path.exists(f"/sys/class/net/{nic.device}")])


def statistics(nic: Nic) -> dict[str, int]:
    """Return the counters of the interface as the guest sees it, or {} if the device does not exist."""
    names = {"rx_octets": "tx_bytes", "rx_packets": "tx_packets", "rx_errors": "tx_errors", "rx_drop": "tx_dropped",
             "tx_octets": "rx_bytes", "tx_packets": "rx_packets", "tx_errors": "rx_errors", "tx_drop": "rx_dropped"}
    try:
        return {name: _counter(nic.device, counter) for name, counter in names.items()}
    except OSError:
        return {}


def _counter(device: str, name: str) -> int:
    with open(f"/sys/class/net/{device}/statistics/{name}", encoding="ascii") as file:
        return int(file.read())


def _ip(lines: Sequence[str]) -> None:
    if not lines:
        return
    environment = {**os.environ, "LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
    try:
        done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True,
                              timeout=_TIMEOUT, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise exception.NetworkSetupError(reason=f"cannot run ip: {error}") from error
    if done.returncode:
        raise exception.NetworkSetupError(reason=f"cannot change the tap devices of the guest: {done.stderr.strip()}")
