"""The data structures that services exchange: msgspec structs shared by all services."""
