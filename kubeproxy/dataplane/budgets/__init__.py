"""Budgets of file descriptors, memory and pipes."""
