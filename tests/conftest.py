"""Setup before any test module: nova.bus chooses the threading back end of oslo's libraries.

Property tests try the same examples in every run, so that results depend on the change only; NOVA_EXAMPLES requests new
examples, and their number for the engine.
"""

import collections
import logging
import os
import pathlib

import hypothesis
import pytest

import nova.bus  # noqa: F401

hypothesis.settings.register_profile("nova", derandomize="NOVA_EXAMPLES" not in os.environ, deadline=None)
hypothesis.settings.load_profile("nova")


def pytest_runtest_setup() -> None:
    """Remove the log handlers of services of earlier tests whose captured stderr is closed."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if getattr(getattr(handler, "stream", None), "closed", False):
            root.removeHandler(handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the total duration of the tests of each folder, with fixtures, and its longest file."""
    files: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                files[report.nodeid.partition("::")[0]] += report.duration
    folders: collections.Counter[str] = collections.Counter()
    for path, seconds in files.items():
        folders[str(pathlib.PurePath(path).parent)] += seconds
    if len(folders) > 1:
        terminalreporter.section("seconds by folder, with the longest file")
        for folder, seconds in folders.most_common():
            path = max((path for path in files if pathlib.PurePath(path).parent == pathlib.PurePath(folder)),
                       key=files.__getitem__)
            terminalreporter.write_line(f"{seconds:8.1f}  {folder}  ({files[path]:.1f}  {pathlib.PurePath(path).name})")
