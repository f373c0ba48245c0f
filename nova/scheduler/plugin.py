"""Filters and weighers as plugins: what they have in common, and how they are found.

A plugin is an entry point of ``nova.scheduler.filters`` or ``nova.scheduler.weighers``: a class
without constructor arguments, derived from one of the bases in :mod:`nova.scheduler.filters` and
:mod:`nova.scheduler.weighers`. Each process makes one object of each.
"""

from __future__ import annotations

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
    """What a plugin's answer for a node depends on; it decides what is asked again while planning."""

    REQUEST = "nothing that planning changes"
    ROW = "the usage of that node"
    TABLE = "the usage of other nodes, or where the group's members are"


class PluginError(Exception):
    """The configuration names a plugin that does not exist or cannot be loaded."""


class Plugin:
    """Common to filters and weighers."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def applies(self, request: Request) -> bool:
        """False leaves the plugin out for this request; cheaper than an answer that says nothing."""
        return True

    def scope(self, request: Request) -> Scope:
        """What the answers depend on; the default is right for everything that looks at single nodes."""
        return Scope.ROW


@functools.cache
def _found(namespace: str) -> dict[str, type[Any] | BaseException]:
    """Every entry point of a namespace: its class, or why it could not be loaded."""
    failed: dict[str, type[Any] | BaseException] = {}

    def note(_manager: Any, entry_point: Any, error: BaseException) -> None:
        failed[entry_point.name] = error

    manager: Any = extension.ExtensionManager(namespace, invoke_on_load=False, on_load_failure_callback=note)
    return failed | {found.name: found.plugin for found in manager}


def load(namespace: str, base: type[T], names: Sequence[str] | None, option: str) -> list[T]:
    """One object of each named plugin, in this order (None: all that can be loaded, by name).

    Raises PluginError, naming ``option``, for a name that is no entry point of the namespace.
    """
    found = _found(namespace)
    loaded: list[T] = []
    for name in sorted(found) if names is None else list(dict.fromkeys(names)):
        plugin = found.get(name)
        if plugin is None:
            known = ", ".join(sorted(found)) or "none, is Nova installed?"
            raise PluginError(f"{option} names {name}, which is no entry point of {namespace} (known: {known})")
        if isinstance(plugin, BaseException):
            if names is None:
                LOG.error("%s of %s cannot be loaded and is left out: %s", name, namespace, plugin)
                continue
            raise PluginError(f"{option} names {name}, which cannot be loaded: {plugin}")
        if not issubclass(plugin, base):
            raise PluginError(f"{option}: {name} is no {base.__name__} (see nova.scheduler.{base.__name__.lower()}s)")
        loaded.append(plugin())
    return loaded
