"""A loss as a graph: recorded, cut at what is affine in the point, rewritten, and put to work."""
