"""Figures, plots and pages for people: numbers in, text and SVG out."""
