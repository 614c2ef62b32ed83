"""One process's life: assembly, lifecycle, signals, reload, shutdown, admin servers."""
