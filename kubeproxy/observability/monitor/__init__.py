"""Periodic checks of the control process's loop, the workers and the endpoints."""
