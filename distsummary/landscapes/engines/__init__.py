"""Points -> losses: the model's code evaluated along rows of a plane."""
