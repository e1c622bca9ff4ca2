"""Chunks -> grids: who evaluates what, in this process or on Ray, and what is kept of it."""
