"""Container runtimes: what novad wants of one (``base``), and podman."""
