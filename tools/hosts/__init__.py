"""Simulated compute hosts on one machine: sets of namespaces, each with its own libvirtd and disk.

A :class:`Site` is a directory with hosts and their switch; a :class:`Host` can be switched on, disconnected, frozen and
powered off like a separate machine. devstack/stack.sh (``NOVA_HOSTS=2``, by ``python -m tools.hosts``)
and tests/integration/hosts/two_hosts.py use it. Needs root and only the standard library.
"""

from tools.hosts.host import Host
from tools.hosts.running import HostError
from tools.hosts.site import Site

__all__ = ["Host", "HostError", "Site"]
