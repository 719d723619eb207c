"""Presets: a TOML file each, named as the preset; its first line says what it is."""
