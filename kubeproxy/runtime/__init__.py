"""What every process needs and no component owns: tasks, threads, restart, back-off, privileges."""
