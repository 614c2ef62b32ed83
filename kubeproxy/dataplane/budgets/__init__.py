"""Budgets of descriptors, memory and pipes."""
