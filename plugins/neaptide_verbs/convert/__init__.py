"""`neaptide config convert`: between formats, or from another framework's settings."""
