"""The EC2 API: query requests of Amazon EC2 clients, served through the REST API of Nova with the caller's token."""
