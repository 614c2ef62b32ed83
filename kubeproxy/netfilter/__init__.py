"""The wanted rule set as one value, and the adapters that keep the kernel equal to it."""
