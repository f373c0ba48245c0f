"""What travels: plain msgspec structs shared by all services."""
