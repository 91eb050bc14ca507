"""Every result of the paper, one experiment a file; `python -m training reproduce` runs them (`training.reproduce`).

Xiao, "From Euler to Dormand-Prince: ODE Solvers for Flow Matching Generative Models", arXiv:2605.00836, 2026.
"""
