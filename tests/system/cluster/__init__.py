"""A cluster of real kubelets on one machine, and Kubernetes' own e2e tests in it (docs/conformance.md).

`python -m tests.system.cluster` has the commands. The tests here run where KUBERNETES_BINARIES names a directory with
the programs; elsewhere only their pure parts are tested.
"""
