"""Networks of guests on a host: :func:`driver` returns the back end selected by [network]driver."""

from __future__ import annotations

import functools
from typing import Any, cast

from stevedore import driver as stevedore_driver

from nova.conf import CONF
from nova.network.base import HostNetwork

NAMESPACE = "nova.network.drivers"


@functools.lru_cache(maxsize=1)
def driver() -> HostNetwork:
    """Return the network back end of this process, created at first use. Raises NoMatches for an unknown name."""
    manager: Any = stevedore_driver.DriverManager(NAMESPACE, CONF.network.driver, invoke_on_load=True)
    return cast(HostNetwork, manager.driver)
