"""Functions that start, stop, pause and save a domain. All functions are idempotent."""

import logging
import time
from collections.abc import Callable

import libvirt

from nova import exception
from nova.objects.servers import states
from nova.virt.libvirt import errors

LOG = logging.getLogger(__name__)

# Seconds between two presses of the power button: a booting guest ignores the first one.
PRESS_INTERVAL = 10
_POLL_INTERVAL = 0.5
_FIRST_POLL = 0.05
_KILL_ATTEMPTS = 3

_POWER_STATES = {libvirt.VIR_DOMAIN_NOSTATE: states.NOSTATE, libvirt.VIR_DOMAIN_RUNNING: states.RUNNING,
                 libvirt.VIR_DOMAIN_BLOCKED: states.RUNNING, libvirt.VIR_DOMAIN_PAUSED: states.POWER_PAUSED,
                 libvirt.VIR_DOMAIN_SHUTDOWN: states.SHUTDOWN, libvirt.VIR_DOMAIN_SHUTOFF: states.SHUTDOWN,
                 libvirt.VIR_DOMAIN_CRASHED: states.CRASHED, libvirt.VIR_DOMAIN_PMSUSPENDED: states.POWER_SUSPENDED}
# Reasons for which libvirt itself pauses a guest briefly; such a guest is reported as running.
_PASSING = (libvirt.VIR_DOMAIN_PAUSED_STARTING_UP, libvirt.VIR_DOMAIN_PAUSED_SAVE, libvirt.VIR_DOMAIN_PAUSED_DUMP,
            libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT, libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
            libvirt.VIR_DOMAIN_PAUSED_SHUTTING_DOWN)
# States in which a guest reacts to its power button, or is shutting down already.
_LISTENING = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_SHUTDOWN)
_UNDEFINE = (libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
             | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA)


def state(domain: libvirt.virDomain) -> int:
    """Return the power state; a guest with saved memory is suspended."""
    value, reason = domain.state()
    if value == libvirt.VIR_DOMAIN_PAUSED and reason in _PASSING:
        return states.RUNNING
    if value == libvirt.VIR_DOMAIN_SHUTOFF:
        if domain.hasManagedSaveImage():
            return states.POWER_SUSPENDED
        if reason == libvirt.VIR_DOMAIN_SHUTOFF_CRASHED:
            return states.CRASHED
    return _POWER_STATES.get(value, states.NOSTATE)


def is_arriving(domain: libvirt.virDomain) -> bool:
    """Return True if an incoming migration of the domain is in progress."""
    value, reason = domain.state()
    return bool(value == libvirt.VIR_DOMAIN_PAUSED and not domain.isPersistent()
                and reason in (libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP))


def is_here(domain: libvirt.virDomain) -> bool:
    """Return True if the domain is on this host: no incoming migration is running, no outgoing one has completed."""
    left_states = (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED)
    return tuple(domain.state()) != left_states and not is_arriving(domain)


def start(domain: libvirt.virDomain, paused: bool = False) -> None:
    """Start the domain, from its saved memory if it has any. ``paused``: a stopped domain starts paused."""
    if not domain.isActive():
        try:
            _create(domain, paused)
        except libvirt.libvirtError as error:
            # Another caller has started the domain.
            if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID:
                raise
    if not paused:
        unpause(domain)


def _create(domain: libvirt.virDomain, paused: bool) -> None:
    try:
        domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED if paused else 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_INVALID_ARG or not paused:
            raise
        # libvirt cannot start a container paused.
        domain.create()
        domain.suspend()


def kill(domain: libvirt.virDomain) -> None:
    """Stop the domain without a request to shut down."""
    for attempt in range(1, _KILL_ATTEMPTS + 1):
        try:
            if not domain.isActive():
                return
            domain.destroy()
            return
        except libvirt.libvirtError as error:
            if errors.is_missing(error) or error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
                return
            if errors.is_disconnect(error) or attempt == _KILL_ATTEMPTS:
                raise
            LOG.warning("Guest %s has not stopped (attempt %d), retrying: %s", domain.UUIDString(), attempt, error)
            time.sleep(_POLL_INTERVAL)


def stop(domain: libvirt.virDomain) -> None:
    """Stop the domain and remove its saved memory, so that the next start is a boot."""
    kill(domain)
    if domain.hasManagedSaveImage():
        domain.managedSaveRemove()


def remove(domain: libvirt.virDomain, keep_nvram: bool) -> None:
    """Stop and undefine the domain."""
    kill(domain)
    undefine(domain, keep_nvram)


def press_power_button(domain: libvirt.virDomain) -> None:
    domain.shutdown()


def signal_init(domain: libvirt.virDomain) -> None:
    """Request a shutdown from the first process of a container: by /dev/initctl, and by the signals of systemd and of
    busybox. The process ignores signals that it does not handle."""
    try:
        domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_INITCTL)
    except libvirt.libvirtError as error:
        if errors.is_disconnect(error):
            raise
    for number in (libvirt.VIR_DOMAIN_PROCESS_SIGNAL_RT6, libvirt.VIR_DOMAIN_PROCESS_SIGNAL_USR2):
        domain.sendProcessSignal(1, number, 0)  # libvirt's name of systemd's SIGRTMIN+4 is RT6.


def shut_down(connection: libvirt.virConnect, uuid: str, timeout: float, wait: Callable[[float], object],
              clock: Callable[[], float] = time.monotonic,
              press: Callable[[libvirt.virDomain], None] = press_power_button) -> bool:
    """Request a shutdown by ``press`` and wait ``timeout`` seconds; return True if the guest stopped. ``wait(seconds)``
    returns early when the guest changes. A guest that was started again meanwhile counts as stopped; it has another
    domain number."""
    deadline = clock() + timeout
    number = None
    pressed = float("-inf")
    pause = _FIRST_POLL
    while True:
        # Look the domain up every time: a domain object keeps the domain number that it got when it was created.
        domain = connection.lookupByUUIDString(uuid)
        number = domain.ID() if number is None else number
        if not domain.isActive() or domain.ID() != number:
            return True
        now = clock()
        if now >= deadline or domain.state()[0] not in _LISTENING:
            return False
        if now - pressed >= PRESS_INTERVAL:
            pressed = now
            try:
                press(domain)
            except libvirt.libvirtError as error:
                if errors.is_disconnect(error):
                    raise
                LOG.debug("Cannot send a shutdown request to guest %s: %s", domain.UUIDString(), error)
        # An event reports the shutdown. The polls are needed if a lost connection has lost the event.
        wait(max(0.0, min(pause, deadline - now)))
        pause = min(pause * 2, _POLL_INTERVAL)


def pause(domain: libvirt.virDomain) -> None:
    if state(domain) != states.POWER_PAUSED:
        _running(domain, "pause")
        domain.suspend()


def unpause(domain: libvirt.virDomain) -> None:
    if state(domain) == states.POWER_PAUSED:
        domain.resume()


def save(domain: libvirt.virDomain) -> None:
    """Save memory to disk and stop the domain."""
    if state(domain) != states.POWER_SUSPENDED:
        _running(domain, "suspend")
        domain.managedSave(0)


def interrupt(domain: libvirt.virDomain) -> None:
    """Inject a non-maskable interrupt. Raises GuestNotRunning, NotImplementedHere."""
    try:
        domain.injectNMI()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
            raise exception.GuestNotRunning(instance_uuid=domain.UUIDString()) from error
        if error.get_error_code() in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            raise exception.NotImplementedHere(what="trigger crash dumps") from error
        raise


def undefine(domain: libvirt.virDomain, keep_nvram: bool = False) -> None:
    """Remove the domain, its saved memory and (unless kept) its UEFI variables."""
    nvram = libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if keep_nvram else libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
    try:
        try:
            domain.undefineFlags(_UNDEFINE | nvram)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_INVALID_ARG:
                raise
            domain.undefine()  # libvirt refuses these flags for containers
    except libvirt.libvirtError as error:
        if not errors.is_missing(error):
            raise


def _running(domain: libvirt.virDomain, method: str) -> None:
    if not domain.isActive():
        raise exception.InstanceInvalidState(method=method, instance_uuid=domain.UUIDString(), attr="power_state",
                                             state="SHUTDOWN")
