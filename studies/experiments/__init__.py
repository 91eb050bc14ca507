"""Experiments for every result of the paper, one per file; `python -m studies paper` runs them.

Xiao, "From Euler to Dormand-Prince: ODE Solvers for Flow Matching Generative Models", arXiv:2605.00836, 2026.
"""
