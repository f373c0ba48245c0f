"""Loading of classes from entry points."""

from typing import Any

from stevedore import driver as stevedore_driver

from nova import exception


def load(namespace: str, name: str) -> Any:
    """Return the class of an entry point. Raises InvalidInput if there is none."""
    try:
        return stevedore_driver.DriverManager(namespace, name, invoke_on_load=False).driver
    except Exception as error:
        raise exception.InvalidInput(reason=f"there is no {namespace} plugin {name!r}: {error}") from error
