"""What the host and its operator decide for every guest, read from the configuration once."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the host and its operator decide for every guest.

    ``owner`` is the nova-compute host that a domain belongs to. ``host_serial`` is the serial number
    guests show (None: the server's id; "": none). ``balloon_period`` in seconds, 0: no statistics.
    """

    owner: str
    virt_type: str = "kvm"
    arch: str = "x86_64"
    machines: dict[str, str] = dataclasses.field(default_factory=dict)
    cpu_mode: str | None = None
    cpu_model: str | None = None
    cpu_flags: tuple[str, ...] = ()
    cache: str = "none"
    discard: str | None = None
    host_serial: str | None = None
    vnc_listen: str | None = None
    balloon_period: int = 10
