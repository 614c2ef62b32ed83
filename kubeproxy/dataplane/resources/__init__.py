"""Descriptors, memory and pipes as budgets."""
