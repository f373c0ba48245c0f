"""The gRPC interface of novad: ``novad.proto``, and the modules that ``python -m tools.novad_api`` generates from it.

Of novad, the command line imports only the client side.
"""
