"""The gRPC interface of novad: ``novad.proto``, and the modules that ``python -m tools.novad_api`` generates from it.

The command line imports this package and :mod:`nova.novad.client` alone.
"""
