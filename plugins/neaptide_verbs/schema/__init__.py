"""`neaptide config schema`: one JSON Schema of all settings, including those of plugins."""
