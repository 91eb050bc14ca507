"""Forms: how a network is evaluated, and what makes a row's bits independent of the other rows of its call."""
