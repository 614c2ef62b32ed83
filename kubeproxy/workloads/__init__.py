"""Workloads: what creates, updates and keeps sets of pods."""
