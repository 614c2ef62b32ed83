"""The documents, held against what they speak of."""
