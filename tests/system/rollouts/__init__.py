"""Rollouts under traffic: pods that are processes with addresses of their own, and what clients lose."""
