"""The types that plugins use: phases, steps, spans, the store, the ledger, the stash."""
