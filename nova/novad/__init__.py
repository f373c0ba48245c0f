"""novad: the daemon of a node that runs the components of a platform as containers, with their data. See doc/novad.md.

It stands beside the compute suite and imports nothing of it; ``nova`` (the command) speaks to it over gRPC.
"""
