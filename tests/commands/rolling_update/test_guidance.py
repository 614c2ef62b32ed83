"""The commands to go on and back: complete, and without secrets."""

from __future__ import annotations

from kubeproxy.commands.rolling_update.guidance import go_back, go_on
from kubeproxy.commands.rolling_update.options import Cleanup, UpdateOptions
from kubeproxy.kubernetes.client.kubeconfig import Overrides


def test_the_same_command() -> None:
    options = UpdateOptions(
        names=("web", "next"),
        image="a b",
        container="side",
        image_pull_policy="Always",
        deployment_label_key="key",
        max_surge="25%",
        max_unavailable=2,
        min_ready_s=1.5,
        cleanup=Cleanup.PRESERVE,
        client=Overrides(namespace="shop", context="it", server="https://api:6443", token="secret"),
    )
    assert go_on(options) == (
        "kubeproxy rolling-update web next '--image=a b' --container=side --image-pull-policy=Always"
        " --deployment-label-key=key --cleanup-policy=preserve --max-surge=25% --max-unavailable=2"
        " --min-ready-seconds=1.5s -n shop --context=it --server=https://api:6443"
    )


def test_back() -> None:
    options = UpdateOptions(names=("web",), filenames=("new.yaml",), client=Overrides(kubeconfig="a.conf"))
    assert go_on(options) == "kubeproxy rolling-update web -f new.yaml --kubeconfig=a.conf"
    assert go_back(options, "next") == "kubeproxy rolling-update web next --rollback --kubeconfig=a.conf"
    assert go_back(options, "") == "kubeproxy rolling-update web --rollback --kubeconfig=a.conf"


def test_back_keeps_the_label_and_the_way_to_the_server() -> None:
    client = Overrides(server="https://api", certificate_authority="ca.crt", client_key="a.key", token="secret")
    options = UpdateOptions(names=("web",), image="a", deployment_label_key="key", drain_timeout_s=0, client=client)
    assert go_back(options, "next") == (
        "kubeproxy rolling-update web next --rollback --deployment-label-key=key --drain-timeout=0"
        " --server=https://api --certificate-authority=ca.crt --client-key=a.key"
    )
    lax = UpdateOptions(
        names=("web",), image="a", client=Overrides(server="https://api", insecure_skip_tls_verify=True)
    )
    assert go_on(lax) == ("kubeproxy rolling-update web --image=a --server=https://api --insecure-skip-tls-verify")
