"""Several processes that train one model: start them, join them, and let them agree."""
