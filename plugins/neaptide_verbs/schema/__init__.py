"""`neaptide config schema`: one JSON Schema of all settings. Settings of plugins are included."""
