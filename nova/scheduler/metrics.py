"""Options that say which metrics or properties count, and by how much."""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOG = logging.getLogger(__name__)


def ratios(weight_setting: Iterable[str], option: str = "[metrics]weight_setting") -> dict[str, float]:
    """name -> ratio of such an option; what is no name=ratio is left out with a warning."""
    found: dict[str, float] = {}
    for setting in weight_setting:
        name, _, ratio = setting.partition("=")
        try:
            found[name.strip()] = float(ratio)
        except ValueError:
            LOG.warning("%s: %s is not name=ratio", option, setting)
    return found
