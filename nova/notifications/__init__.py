"""What Nova tells on the bus of what it does: event types, publishers and payloads."""
