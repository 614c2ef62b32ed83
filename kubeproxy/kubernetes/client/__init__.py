"""HTTP client of an API server: credentials, transport, decoding, errors."""
