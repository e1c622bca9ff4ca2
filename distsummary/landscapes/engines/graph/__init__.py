"""The loss as a graph: recorded, rewritten, cut where it is no longer affine in the point, and run."""
