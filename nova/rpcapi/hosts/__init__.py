"""RPC interfaces for services, hypervisors, aggregates and availability zones."""
