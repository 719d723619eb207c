"""`neaptide config convert`: converts between formats, or from another framework's settings."""
