"""Real compute hosts on one machine: each a set of namespaces with a libvirtd and a disk of its own.

A :class:`Site` is a directory with hosts and the switch that joins them; a :class:`Host` is switched on, cut off,
frozen and loses power like a machine of its own. devstack/stack.sh (``NOVA_HOSTS=2``, by ``python -m tools.hosts``)
and tests/integration/two_hosts.py use it. Needs root and nothing but the standard library.
"""

from tools.hosts.host import Host
from tools.hosts.running import HostError
from tools.hosts.site import Site

__all__ = ["Host", "HostError", "Site"]
