"""Engines, which evaluate a model's loss at the points of a plane, row by row."""
