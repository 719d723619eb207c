"""The types that plugins use: phases, steps, the parameter store, memory estimates, and others."""
