"""Container runtimes: the interface that novad needs (``base``), and podman."""
