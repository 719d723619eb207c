"""`neaptide config schema`: one JSON Schema of all settings, plugins' included."""
