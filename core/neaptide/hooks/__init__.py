"""What a plugin may do, and who is asked: hook specs, manager, middleware, registry, resolver."""
