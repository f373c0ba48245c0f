"""Servers, and what belongs to one."""
