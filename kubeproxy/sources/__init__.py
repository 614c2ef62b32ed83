"""The sources of Services and endpoints. Each source delivers its objects to a `Sink`."""
