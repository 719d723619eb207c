"""Hooks and plugins: specs, manager and middleware of hooks; registry and order of plugins."""
