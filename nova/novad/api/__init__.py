"""What novad is asked over gRPC: ``novad.proto``, and what ``python -m tools.novad_api`` makes of it.

The command line stands on this package and :mod:`nova.novad.client` alone.
"""
