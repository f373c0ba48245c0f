"""Before any test module: nova.bus chooses the threading back end of oslo's libraries.

Property tests try the same examples in every run, so that a change is judged by what it changes; with NOVA_EXAMPLES
they look for new ones, and the engine's takes so many.
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
