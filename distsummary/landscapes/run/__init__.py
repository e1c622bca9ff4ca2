"""Chunks -> grids: workers in this process or on Ray, the division of work, and the journal of results."""
