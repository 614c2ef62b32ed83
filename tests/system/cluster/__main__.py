"""Commands: ``python -m tests.system.cluster up|table|e2e|events|images|…`` (docs/conformance.md)."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tests.system.cluster import conformance, controllers, events, images, memory, table
from tests.system.cluster.cluster import Cluster, joined
from tests.system.cluster.conformance import Suite
from tests.system.cluster.events import EVENTS
from tests.system.cluster.images import VERSIONS
from tests.system.cluster.programs import found, why_not
from tests.system.cluster.service_proxies import Ours, kube_proxy
from tests.system.cluster.startup import running
from tests.system.cluster.web import Web

KUBE_PROXY = "kube-proxy"
PATHS = ("userspace", "kernel", "auto")


@click.group()
@click.option("--directory", type=click.Path(path_type=Path), help="State and results (default: a new one).")
@click.option("--nodes", default=3, show_default=True, help="Of a cluster that is made.")
@click.pass_context
def main(context: click.Context, directory: Path | None, nodes: int) -> None:
    """A cluster of real kubelets, and Kubernetes' e2e tests in it. Commands work on the cluster that `up` keeps in that
    directory; where none runs, they make one."""
    if (reason := why_not()) is not None:
        raise click.ClickException(reason)
    context.obj = (directory or Path(tempfile.mkdtemp(prefix="cluster-"))).absolute(), nodes


@contextmanager
def _cluster(context: click.Context) -> Iterator[Cluster]:
    directory, nodes = context.obj
    if (directory / "cluster.json").exists():
        yield joined(directory, found())
        return
    click.echo(f"making a cluster of {nodes} nodes in {directory}", err=True)
    with running(directory, found(), nodes) as cluster:
        yield cluster


@main.command()
@click.pass_context
def up(context: click.Context) -> None:
    """Make a cluster and keep it until this command is ended."""
    with _cluster(context) as cluster:
        network = f"--net=/proc/{os.getpid()}/fd/{cluster.switch.fd}"
        kubectl = f"{cluster.programs['kubectl']} --kubeconfig={cluster.pki.kubeconfig('admin')}"
        click.echo(f"nsenter {network} {kubectl} get pods -A")
        click.echo(f"the cluster is up: --directory={cluster.directory}")
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()


@main.command()
@click.argument("archives", nargs=-1, type=click.Path(path_type=Path))
@click.option("--version", default=VERSIONS.current, show_default=True)
@click.pass_context
def load(context: click.Context, archives: tuple[Path, ...], version: str) -> None:
    """Import archives of images into every node; without any, build the project's image of that version first."""
    with _cluster(context) as cluster:
        for archive in archives or (_built(cluster, version),):
            cluster.load_image(archive)


def _built(cluster: Cluster, version: str) -> Path:
    return images.make_ours(version, cluster.directory, cluster.directory / "storage")


@main.command()
@click.argument("how", type=click.Choice(["overlay", "chart"]))
@click.option("--config", default="{}", help="Fields of `kubeproxy:` in the configuration, as JSON.")
@click.option("--version", default=VERSIONS.current, show_default=True)
@click.pass_context
def install(context: click.Context, how: str, config: str, version: str) -> None:
    """Install the project's DaemonSet by the kustomize overlay or by the chart's rendered form."""
    with _cluster(context) as cluster:
        ours = Ours(cluster)
        (ours.install_overlay if how == "overlay" else ours.install_chart)(version, json.loads(config))


@main.command()
@click.pass_context
def uninstall(context: click.Context) -> None:
    """Remove the project's DaemonSet and its rules."""
    with _cluster(context) as cluster:
        Ours(cluster).uninstall()


@main.command()
@click.argument("label")
@click.option("--focus", default=conformance.SERVICES.focus, help="A regular expression of tests.")
@click.option("--skip", default=conformance.SERVICES.skip, help="A regular expression of tests.")
@click.option("--processes", default=conformance.SERVICES.processes, show_default=True)
@click.option("--beside-kube-proxy", is_flag=True, help="Run kube-proxy meanwhile.")
@click.pass_context
def e2e(context: click.Context, label: str, focus: str, skip: str, processes: int, beside_kube_proxy: bool) -> None:
    """Run e2e tests against what is installed, and print their table."""
    with _cluster(context) as cluster:
        suite = Suite(focus, skip, processes)
        if beside_kube_proxy:
            with kube_proxy(cluster):
                found = conformance.run(cluster, label, suite)
        else:
            found = conformance.run(cluster, label, suite)
    click.echo(table.markdown({label: found}))
    sys.exit(bool(table.failed(found)))


@main.command(name="table")
@click.argument("columns", nargs=-1, type=click.Choice([KUBE_PROXY, *PATHS]))
@click.pass_context
def table_of_services(context: click.Context, columns: tuple[str, ...]) -> None:
    """Run the tests of Services with kube-proxy and by data paths (userspace and auto), one after the other, and print
    the table."""
    outcomes = {}
    with _cluster(context) as cluster:
        ours = Ours(cluster)
        for column in columns or (KUBE_PROXY, "userspace", "auto"):
            if column == KUBE_PROXY:
                with kube_proxy(cluster):
                    outcomes[column] = conformance.run(cluster, column, conformance.SERVICES)
                continue
            cluster.load_image(_built(cluster, VERSIONS.current))
            ours.install_overlay(VERSIONS.current, {"dataPath": column})
            outcomes[column] = conformance.run(cluster, column, conformance.SERVICES)
            ours.uninstall()
    click.echo(table.markdown(outcomes))


@main.command(name="workloads")
@click.pass_context
def table_of_workloads(context: click.Context) -> None:
    """Run the tests of Deployments, ReplicaSets and ReplicationControllers against `kubeproxy controller-manager`."""
    with _cluster(context) as cluster, controllers.ours(cluster):
        found = conformance.run(cluster, "workloads", conformance.WORKLOADS)
    click.echo(table.markdown({"kubeproxy controller-manager": found}))


@main.command(name="events")
@click.option("--only", default="", help="A regular expression of events.")
@click.option("--rate", default=60, show_default=True, help="New connections a second from each of three places.")
@click.option("--kept", default=5, show_default=True, help="Kept connections of each place.")
@click.option("--times", default=1, show_default=True, help="Of each event, under the same traffic.")
@click.pass_context
def table_of_events(context: click.Context, only: str, rate: int, kept: int, times: int) -> None:
    """Let the events happen under traffic, and print what was lost."""
    results = {}
    with _cluster(context) as cluster:
        web = Web(cluster, cluster.nodes[0])
        for name, event in EVENTS.items():
            if re.search(only, name):
                found = events.run(event, web, Ours(cluster), VERSIONS, rate=rate, kept=kept, times=times)
                results[name] = found
                for place, tally in found.tallies.items():
                    broken = [f"{kind} {error} after {at - found.began:.2f} s" for at, kind, error in tally.broken]
                    click.echo(f"{name}, {place}: lost {found.lost_by(place)}, broken {broken}", err=True)
    click.echo(events.markdown(results))


@main.command(name="memory")
@click.pass_context
def table_of_memory(context: click.Context) -> None:
    """Print the memory of our processes on every node."""
    with _cluster(context) as cluster:
        for node in cluster.nodes:
            parts = memory.of(node)
            listed = "; ".join(f"{part} {', '.join(f'{it:.0f}' for it in sizes)}" for part, sizes in parts.items())
            click.echo(f"{node.name}: {sum(map(sum, parts.values())):.0f} MiB: {listed}")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def kubectl(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run kubectl as administrator."""
    with _cluster(context) as cluster:
        click.echo(cluster.kubectl(*arguments, check=False), nl=False)


if __name__ == "__main__":
    main()
