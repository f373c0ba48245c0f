"""Before any test module: nova.bus chooses the threading back end of oslo's libraries."""

import nova.bus  # noqa: F401
