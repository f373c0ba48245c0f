"""Commands of ``nova`` that manage a platform through novad: components deployed as containers (doc/novad.md)."""
