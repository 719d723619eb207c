"""One run: trainer, fit, saving, the recorder and the run directory."""
