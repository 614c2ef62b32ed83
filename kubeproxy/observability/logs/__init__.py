"""Logging: setup, writing, rate limits, the access log."""
