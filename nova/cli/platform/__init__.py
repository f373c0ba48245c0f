"""The verbs of ``nova`` that steer novad: a platform's components as containers (doc/novad.md)."""
