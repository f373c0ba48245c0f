"""Write the feature matrix of doc/drivers.md: the features of each hypervisor driver, from its roles and capabilities.

    python -m tools.feature_matrix           after a change of a driver; ``--check``: exit code 1 if it is outdated

A driver supports a verb of a role if it overrides the method and, where a capability stands for the verb, declares it.
The contract suite (tests/integration/drivers) calls the verbs and checks that the others are refused.
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import sys
from collections.abc import Callable

from nova import conf
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import GuestDriver
from nova.virt.driver import Driver

DOCUMENT = pathlib.Path(__file__).parents[1] / "doc/drivers.md"
_BEGIN, _END = "<!-- written by python -m tools.feature_matrix -->", "<!-- end -->"

# Role of a driver -> its base class, for example power -> guest_driver.Power.
ROLES: dict[str, type] = {
    name: getattr(guest_driver, "".join(map(str.capitalize, name.split("_"))))
    for name in GuestDriver.__dataclass_fields__ if not name.startswith("live_")
} | {"live_source": guest_driver.LiveMigrationSource, "live_target": guest_driver.LiveMigrationTarget}


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature with the verbs ("role.verb") that it needs. ``capability``: the name that declares it, if there is
    one."""

    title: str
    verbs: tuple[str, ...]
    capability: str = ""


FEATURES = (
    Feature("Launch, delete, start, stop, reboot", ("guests.spawn", "guests.destroy", "power.on", "power.off",
                                                    "power.reboot")),
    Feature("Pause, unpause", ("power.pause", "power.unpause"), "pause"),
    Feature("Suspend, resume", ("power.suspend", "power.resume"), "suspend"),
    Feature("Console log", ("consoles.output",), "console_output"),
    Feature("Interactive consoles", ("consoles.address",)),
    Feature("Diagnostics", ("guests.diagnostics",), "diagnostics"),
    Feature("Rebuild", ("disks.replace",)),
    Feature("Rescue", ("rescue.begin", "rescue.end")),
    Feature("Snapshot, backup, shelve", ("snapshots.take", "snapshots.discard"), "snapshot"),
    Feature("Quiesced file systems", ("snapshots.quiesce", "snapshots.unquiesce")),
    Feature("Attach and detach volumes", ("volumes.attach", "volumes.detach"), "attach_volume"),
    Feature("Extend attached volumes", ("volumes.extend", "volumes.is_extended")),
    Feature("Swap volumes", ("volume_swaps.swap", "volume_swaps.cancel")),
    Feature("Snapshots of attached file volumes", ("volume_files.names", "volume_files.snapshot", "volume_files.merge",
                                                   "volume_files.cancel")),
    Feature("Attach and detach interfaces", ("interfaces.attach", "interfaces.detach"), "attach_interface"),
    Feature("Resize, cold migration", ("cold_migration.open_disks", "cold_migration.receive_disks",
                                       "cold_migration.finish", "cold_migration.confirm", "cold_migration.revert"),
            "move"),
    Feature("Live migration", ("live_source.check", "live_source.migrate", "live_source.force_complete",
                               "live_target.prepare", "live_target.finish", "live_target.rollback"), "live_migration"),
    Feature("Set password", ("guests.set_password",)),
    Feature("Crash dump", ("power.trigger_crash_dump",)),
    Feature("Virtual TPM", (), "vtpm"),
)


def _driver(module: str, name: str, **options: str) -> Callable[[], Driver]:
    """Return a function that makes a driver; ``options``: of [libvirt]."""
    def make() -> Driver:
        conf.register(conf.CONF)
        for option, value in options.items():
            conf.CONF.set_override(option, value, "libvirt")
        try:
            driver: Driver = getattr(importlib.import_module(module), name)("host")
            return driver
        finally:
            for option in options:
                conf.CONF.clear_override(option, "libvirt")

    return make


# Title of the column -> the driver, which connects to nothing.
COLUMNS: dict[str, Callable[[], Driver]] = {
    "`libvirt` (QEMU, KVM)": _driver("nova.virt.libvirt.driver", "LibvirtDriver", virt_type="qemu"),
    "`libvirt` (LXC)": _driver("nova.virt.libvirt.driver", "LibvirtDriver", virt_type="lxc"),
    "`uml`": _driver("nova.virt.uml.driver", "UmlDriver"),
    "`vmware`": _driver("nova.virt.vmware.driver", "VmwareDriver"),
    "`ironic`": _driver("nova.virt.ironic.driver", "IronicDriver"),
    "`fake`": _driver("nova.virt.fake.driver", "FakeDriver"),
}


def overrides(driver: GuestDriver, verb: str) -> bool:
    """Return True if the driver has a method of its own for the verb."""
    role, name = verb.split(".")
    return getattr(type(getattr(driver, role)), name) is not getattr(ROLES[role], name)


def is_supported(driver: Driver, verb: str) -> bool:
    """Return True if the driver declares the verb."""
    needed = {feature.capability for feature in FEATURES if verb in feature.verbs} - {""}
    return overrides(driver, verb) and needed <= driver.capabilities


def table() -> str:
    drivers = {title: make() for title, make in COLUMNS.items()}
    lines = ["| | " + " | ".join(drivers) + " |", "|---|" + "---|" * len(drivers)]
    for feature in FEATURES:
        cells = ["yes" if all(is_supported(driver, verb) for verb in feature.verbs)
                 and {feature.capability} - {""} <= driver.capabilities else "–" for driver in drivers.values()]
        lines.append(f"| {feature.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def document() -> str:
    """Return the text of the document with a current matrix."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}"


def main() -> int:
    text = document()
    if "--check" in sys.argv[1:]:
        return int(DOCUMENT.read_text(encoding="utf-8") != text)
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
