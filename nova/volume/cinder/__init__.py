"""Volumes of Cinder: attachments, snapshots and swaps on the conductor, connections on the host."""
