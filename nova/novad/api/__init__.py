"""The gRPC interface of novad: ``novad.proto``, and the modules that ``python -m tools.novad_api`` makes from it."""
