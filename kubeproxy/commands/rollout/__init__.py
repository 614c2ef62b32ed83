"""``kubeproxy rollout``: does for Deployments what ``kubectl rollout`` does, and explains and advises."""
