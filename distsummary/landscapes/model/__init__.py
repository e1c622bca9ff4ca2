"""The user's model on loan, its data, and what is measured of it."""
