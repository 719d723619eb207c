"""What `plan.py` compares: models, sets of plugins, and a real run of each."""
