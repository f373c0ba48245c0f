"""Volumes by Cinder: attachments, snapshots and swaps for the conductor, connections on the host."""
