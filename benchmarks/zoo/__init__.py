"""Ordinary trainings, on which the verdicts are measured: see README.md in this directory."""
