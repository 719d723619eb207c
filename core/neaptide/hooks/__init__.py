"""Hooks: specs, manager, middleware, the registry of plugins, and the order of plugins."""
