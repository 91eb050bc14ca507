"""Which solver a model needs: one list of candidates, one error, the frontier, and the choice within a budget."""
