"""A model without values of its own: each of torch's operations is given those that it reads, just then."""
