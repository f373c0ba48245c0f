"""What others are told after a transaction, many changes at a time: schedulers, hosts, listeners on the bus."""
