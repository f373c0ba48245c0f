"""Containers (virt_type lxc): guests without hardware of their own."""
