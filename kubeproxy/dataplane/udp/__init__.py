"""UDP: sessions and batched system calls."""
