"""Commands and controllers that change a cluster through its API server; they know nothing of proxying."""
