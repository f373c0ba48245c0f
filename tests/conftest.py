"""Setup before any test module: nova.bus chooses the threading back end of oslo's libraries.

Property tests try the same examples in every run, so that results depend on the change only; NOVA_EXAMPLES requests new
examples, and their number for the engine.
"""

import collections
import gc
import logging
import os
import pathlib
from collections.abc import Generator

import hypothesis
import pytest

gc.disable()  # until all tests are imported; collections took a quarter of the CPU time of a test run

import nova.bus  # noqa: E402, F401

hypothesis.settings.register_profile("nova", derandomize="NOVA_EXAMPLES" not in os.environ, deadline=None)
hypothesis.settings.load_profile("nova")


def pytest_collection_finish() -> None:
    """Exclude the imported tests from garbage collections, and collect less often than Python's default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Exclude all objects from the five garbage collections with which pytest ends, to report errors of finalizers."""
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Remove the log handlers of services of earlier tests whose captured stderr is closed."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if getattr(getattr(handler, "stream", None), "closed", False):
            root.removeHandler(handler)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the processes that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


_counted = [0.0]  # CPU seconds of this process up to the end of the last test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the CPU seconds of a test with its fixtures to its last report."""
    report = yield
    if report.when == "teardown":
        now = _cpu_seconds()
        report.user_properties.append(("cpu", now - _counted[0]))
        _counted[0] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the total duration and CPU time of the tests of each folder, with fixtures, and its longest file. Processes
    that outlive their test, such as services and guests, are not part of the CPU time."""
    files: collections.Counter[str] = collections.Counter()
    folders: collections.Counter[str] = collections.Counter()
    cpu: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                path = report.nodeid.partition("::")[0]
                folder = str(pathlib.PurePath(path).parent)
                files[path] += report.duration
                folders[folder] += report.duration
                cpu[folder] += sum(seconds for name, seconds in report.user_properties if name == "cpu")
    if len(folders) > 1:
        terminalreporter.section("seconds and CPU seconds by folder, with the longest file")
        for folder, seconds in folders.most_common():
            path = max((path for path in files if pathlib.PurePath(path).parent == pathlib.PurePath(folder)),
                       key=files.__getitem__)
            terminalreporter.write_line(f"{seconds:8.1f} {cpu[folder]:8.1f}  {folder}  "
                                        f"({files[path]:.1f}  {pathlib.PurePath(path).name})")
