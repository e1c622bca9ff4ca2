"""The user's model while a landscape uses it, its data, and the quantities that are measured."""
