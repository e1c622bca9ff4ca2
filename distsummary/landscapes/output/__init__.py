"""Turns loss grids into files and pictures."""
