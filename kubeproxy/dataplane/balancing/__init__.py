"""Choice of the endpoint: rotation, ejection, session affinity."""
