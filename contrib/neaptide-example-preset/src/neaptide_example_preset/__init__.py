"""Presets. Each preset is a TOML file with the preset's name. Its first line is the description."""
