"""Where Services and endpoints come from. Every source speaks through a `Sink` and knows nothing of who listens."""
