"""novad: a daemon that runs the components of a platform on a node as containers. See doc/novad.md."""
