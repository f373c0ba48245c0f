"""Volumes on a host: back ends are entry points of nova.volume.drivers, [volume]driver names the one in use."""
