"""Units and plots for people: numbers in, text and SVG out."""
