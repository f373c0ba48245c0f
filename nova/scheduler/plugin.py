"""Filters and weighers as plugins: common base class, and loading.

A plugin is an entry point of ``nova.scheduler.filters`` or ``nova.scheduler.weighers``: a class without constructor
arguments, derived from one of the base classes in :mod:`nova.scheduler.filters` and :mod:`nova.scheduler.weighers`.
Each process creates one object per class."""

import enum
import functools
import logging
from collections.abc import Sequence
from typing import Any, TypeVar

from stevedore import extension

from nova.scheduler.request import Request

LOG = logging.getLogger(__name__)

T = TypeVar("T", bound="Plugin")


class Scope(enum.Enum):
    """Dependencies of the result of a plugin for a node; they determine what is evaluated again during planning."""

    REQUEST = "nothing that planning changes"
    ROW = "the usage of that node"
    TABLE = "the usage of other nodes, or where the group's members are"


class PluginError(Exception):
    """The configuration names a plugin that does not exist or cannot be loaded."""


class Plugin:
    """Common base class of filters and weighers."""

    # The dependencies of the results. The default is correct for plugins that check single nodes.
    depends_on = Scope.ROW

    @property
    def name(self) -> str:
        return type(self).__name__

    def applies(self, request: Request) -> bool:
        """Return False to skip the plugin for this request."""
        return True

    def scope(self, request: Request) -> Scope:
        """Return the dependencies of the results for this request, by default ``depends_on``."""
        return self.depends_on


@functools.cache
def _plugins(namespace: str) -> dict[str, type[Any] | BaseException]:
    """Return the class of every entry point of a namespace, or the error of its loading."""
    failed: dict[str, type[Any] | BaseException] = {}

    def note(_manager: Any, entry_point: Any, error: BaseException) -> None:
        failed[entry_point.name] = error

    manager: Any = extension.ExtensionManager(namespace, invoke_on_load=False, on_load_failure_callback=note)
    return failed | {plugin.name: plugin.plugin for plugin in manager}


def load(namespace: str, base: type[T], names: Sequence[str] | None, option: str) -> list[T]:
    """Return one object of each named plugin in this order (None: all plugins that can be loaded, by name). Raises
    PluginError, naming ``option``, for a name that is not an entry point of the namespace."""
    plugins = _plugins(namespace)
    loaded: list[T] = []
    for name in sorted(plugins) if names is None else list(dict.fromkeys(names)):
        plugin = plugins.get(name)
        if plugin is None:
            available = ", ".join(sorted(plugins)) or "none, is Nova installed?"
            raise PluginError(f"{option} names {name}, which is not an entry point of {namespace} "
                              f"(available: {available})")
        if isinstance(plugin, BaseException):
            if names is None:
                LOG.error("Skipping plugin %s of %s, which cannot be loaded: %s", name, namespace, plugin)
                continue
            raise PluginError(f"{option} names {name}, which cannot be loaded: {plugin}")
        if not issubclass(plugin, base):
            kind = base.__name__
            raise PluginError(f"{option}: {name} is not a {kind} (see nova.scheduler.{kind.lower()}s)")
        loaded.append(plugin())
    return loaded
