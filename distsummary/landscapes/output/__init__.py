"""Grids -> files and pictures."""
