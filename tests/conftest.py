"""Setup before any test module: nova.bus chooses the threading back end of oslo's libraries.

Property tests try the same examples in every run, so that results depend on the change only; NOVA_EXAMPLES requests new
examples, and their number for the engine.
"""

import logging
import os

import hypothesis

import nova.bus  # noqa: F401

hypothesis.settings.register_profile("nova", derandomize="NOVA_EXAMPLES" not in os.environ, deadline=None)
hypothesis.settings.load_profile("nova")


def pytest_runtest_setup() -> None:
    """Remove the log handlers of services of earlier tests whose captured stderr is closed."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if getattr(getattr(handler, "stream", None), "closed", False):
            root.removeHandler(handler)
