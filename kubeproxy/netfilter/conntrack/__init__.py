"""Connection tracking: which flows contradict the rules, and their deletion."""
