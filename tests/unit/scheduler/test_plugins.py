"""Plugins are loaded from entry points; an invalid name is an error at startup."""

from __future__ import annotations

import configparser
import importlib
import pathlib
import types

import pytest
from stevedore import extension

from nova import scheduler
from nova.scheduler import manager, plugin
from nova.scheduler.filters import Filter
from nova.scheduler.weighers import Weigher
from tests.paths import ROOT


def declared(namespace: str) -> dict[str, str]:
    """Return the entry points declared in setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = parser["options.entry_points"][namespace].strip().splitlines()
    return dict(tuple(part.strip() for part in line.split("=", 1)) for line in lines)


@pytest.mark.parametrize(("namespace", "base"), [(manager.FILTERS, Filter), (manager.WEIGHERS, Weigher)])
def test_entry_points_are_classes_of_the_same_name(namespace, base):
    for name, path in declared(namespace).items():
        module, _, attribute = path.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert found.__name__ == name
        assert issubclass(found, base)
        assert found().name == name


@pytest.fixture
def entry_points(monkeypatch):
    """Return a function that installs fake entry points: name -> class, or the error of loading."""
    def install(**found: object) -> None:
        class Manager:
            def __init__(self, namespace, invoke_on_load, on_load_failure_callback):
                for name, value in found.items():
                    if isinstance(value, Exception):
                        on_load_failure_callback(self, types.SimpleNamespace(name=name), value)

            def __iter__(self):
                return iter([types.SimpleNamespace(name=name, plugin=value) for name, value in found.items()
                             if not isinstance(value, Exception)])

        plugin._plugins.cache_clear()
        monkeypatch.setattr(extension, "ExtensionManager", Manager)

    yield install
    plugin._plugins.cache_clear()


class Mine(Filter):
    pass


class Heavy(Weigher):
    pass


def test_filters_load_in_configured_order_without_duplicates(entry_points, settings):
    entry_points(Mine=Mine, Other=type("Other", (Filter,), {}))
    settings("filter_scheduler", enabled_filters=["Other", "Mine", "Other"])
    assert [each.name for each in manager.load_filters()] == ["Other", "Mine"]


@pytest.mark.parametrize(("name", "problem"), [
    ("Mien", "names Mien, which is not an entry point of nova.scheduler.filters .available: Broken, Heavy, Mine."),
    ("Broken", "cannot be loaded: no such module"),
    ("Heavy", "Heavy is not a Filter"),
])
def test_invalid_filter_name_is_reported(entry_points, settings, name, problem):
    entry_points(Mine=Mine, Heavy=Heavy, Broken=ImportError("no such module"))
    settings("filter_scheduler", enabled_filters=["Mine", name])
    with pytest.raises(plugin.PluginError, match=problem) as caught:
        manager.load_filters()
    assert "[filter_scheduler]enabled_filters" in str(caught.value)


def test_load_all_or_configured_weighers(entry_points, settings):
    entry_points(Heavy=Heavy, Light=type("Light", (Weigher,), {}), Broken=ImportError("no such module"))
    assert [each.name for each in manager.load_weighers()] == ["Heavy", "Light"]
    settings("filter_scheduler", weight_classes=["nova.scheduler.weights.some.Light"])
    assert [each.name for each in manager.load_weighers()] == ["Light"]
    settings("filter_scheduler", weight_classes=["Broken"])
    with pytest.raises(plugin.PluginError, match="weight_classes"):
        manager.load_weighers()


def test_planning_reads_no_configuration_options():
    """Planning receives its input as arguments: only startup and updates read nova.conf."""
    folder = pathlib.Path(scheduler.__file__).parent
    readers = {path.name for path in folder.rglob("*.py") if "nova.conf import" in path.read_text()}
    assert readers == {"manager.py", "service.py", "follow.py"}
