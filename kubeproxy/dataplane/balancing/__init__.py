"""Which endpoint is next: rotation, ejection, session affinity."""
