"""One run: trainer, session, fit, saving, the recorder, the run directory, the resident store."""
