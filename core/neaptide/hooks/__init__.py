"""Hooks: specs, manager, middleware, the registry of plugins, and their order."""
