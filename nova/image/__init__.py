"""Images: :func:`store` returns the back end selected by [image]driver."""

import functools
from typing import Any, cast

from stevedore import driver as stevedore_driver

from nova.conf import CONF
from nova.image.base import ImageStore

NAMESPACE = "nova.image.drivers"


@functools.lru_cache(maxsize=1)
def store() -> ImageStore:
    """Return the image back end of this process, created at first use. Raises NoMatches for an unknown name."""
    manager: Any = stevedore_driver.DriverManager(NAMESPACE, CONF.image.driver, invoke_on_load=True)
    return cast(ImageStore, manager.driver)
