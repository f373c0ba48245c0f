"""podman: its service as a child process, its REST API, and the registries of images."""
