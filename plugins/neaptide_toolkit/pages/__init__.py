"""Pages that need nothing from outside: HTML, SVG and text."""
