"""Ways to save and load weights and optimizer state, for the bench beside this folder."""
