"""Runs inside the trainers of other libraries. Each module needs its library: import it by name."""
