"""Unit tests take seconds: properties are tried on fewer examples here than a fuzzer would take."""

from hypothesis import settings

settings.register_profile("unit", max_examples=25, deadline=None)
settings.load_profile("unit")
