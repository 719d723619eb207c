"""`neaptide plugins`: list the plugins, show their settings, and create a new one."""
