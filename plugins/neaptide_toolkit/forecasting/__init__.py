"""Forecasts of a run's loss, learned during the run: what the plugins `dynamics-*` share."""
