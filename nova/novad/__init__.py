"""novad: a daemon that runs the components of a platform on a node as containers, with their data. See doc/novad.md.

novad imports nothing of the compute suite. The command ``nova`` is its gRPC client.
"""
