"""Conformance suites: what every method and every policy must pass, yours too. Subclass one in a file of your tests."""

from poise.testing.methods import MethodSuite, check_resuming, make_images
from poise.testing.policies import PolicySuite

__all__ = ["MethodSuite", "PolicySuite", "check_resuming", "make_images"]
