"""Releases of novad itself: download, verification, start on trial."""
