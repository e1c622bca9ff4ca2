"""Records a loss as a graph, rewrites it, splits off its part that is affine in the point, runs the rest."""
