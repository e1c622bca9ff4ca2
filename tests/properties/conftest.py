"""Properties are tried on new examples each time; nothing is said about durations on a busy machine."""

from hypothesis import settings

settings.register_profile("properties", max_examples=100, deadline=None)
settings.load_profile("properties")
