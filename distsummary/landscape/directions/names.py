"""The directions that can be asked for by name, where the command line's help can have them at no cost."""

DIRECTIONS = ("pca", "random", "hessian", "line", "triangle")
OF_RUNS = ("pca", "line", "triangle")  # those that several checkpoints span
