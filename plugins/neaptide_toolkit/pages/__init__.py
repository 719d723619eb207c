"""Self-contained pages in HTML and SVG, and text for terminals."""
