"""What a reader sees of a comparison: a sentence, tables, and a page."""
