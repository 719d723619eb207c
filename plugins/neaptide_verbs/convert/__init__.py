"""`neaptide config convert`: between formats, and from other frameworks' settings."""
