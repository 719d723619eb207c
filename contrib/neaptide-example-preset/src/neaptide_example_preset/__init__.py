"""Presets: one TOML file each, named after the preset; its first line is the description."""
