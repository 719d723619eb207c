"""The model in a run's checkpoint, for verbs that use it after training."""
