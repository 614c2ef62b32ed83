"""Routing rules for answers to preserved client addresses."""
