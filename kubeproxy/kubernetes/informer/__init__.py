"""List-watch: keeps a copy of a resource in step with an API server."""
