"""Sources of Services and endpoints. Each delivers to a `Sink` and does not know its implementation."""
