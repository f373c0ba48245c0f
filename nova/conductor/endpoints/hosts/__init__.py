"""RPC endpoints for services, hypervisors, aggregates and availability zones."""
