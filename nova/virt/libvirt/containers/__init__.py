"""Containers (virt_type lxc): guests that use the kernel of their host."""
