"""Directories of the repository."""

import pathlib

ROOT = pathlib.Path(__file__).parents[1]
# Facts and snapshots that tests compare with.
DATA = ROOT / "tests" / "data"
