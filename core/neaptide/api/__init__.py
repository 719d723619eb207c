"""The words a plugin is written in: phases, steps, spans, the store, the ledger, the stash."""
