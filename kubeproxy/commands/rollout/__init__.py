"""``kubeproxy rollout``: what kubectl's command of that name does with Deployments."""
