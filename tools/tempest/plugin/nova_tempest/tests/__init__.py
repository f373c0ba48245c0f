"""An empty test package, which tempest requires of a plugin."""
