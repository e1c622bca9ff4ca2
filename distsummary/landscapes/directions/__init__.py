"""Checkpoints -> planes: which two directions a landscape has."""
