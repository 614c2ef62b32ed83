"""Socket options, connecting, reserved ports."""
