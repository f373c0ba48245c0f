"""[metrics]: which metrics count, and by how much."""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOG = logging.getLogger(__name__)


def ratios(weight_setting: Iterable[str]) -> dict[str, float]:
    """metric -> ratio of the option weight_setting; what is no metric=ratio is left out with a warning."""
    found: dict[str, float] = {}
    for setting in weight_setting:
        name, _, ratio = setting.partition("=")
        try:
            found[name.strip()] = float(ratio)
        except ValueError:
            LOG.warning("[metrics]weight_setting: %s is not metric=ratio", setting)
    return found
