"""The examples that Hypothesis tries: few, and the same ones each time."""

from hypothesis import settings

settings.register_profile("pathline", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("pathline")
