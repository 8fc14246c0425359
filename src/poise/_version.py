"""The version of poise, in one place."""

__version__ = "0.1.0"
