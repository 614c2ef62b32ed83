"""Commands and controllers that change a cluster through its API server. They know nothing of the proxy."""
