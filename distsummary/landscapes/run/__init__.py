"""Evaluates the points of grids: workers (in this process or on Ray), scheduling, journal of results."""
