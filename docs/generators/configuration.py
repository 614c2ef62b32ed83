"""Generates docs/configuration.md from the schema and the table of flags.

``python -m docs.generators.configuration > docs/configuration.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from kubeproxy.config.describe import allowed, notation, text_of
from kubeproxy.config.fields import Field, fields
from kubeproxy.config.flags import Flag, flags
from kubeproxy.config.schema import API_VERSION, KIND

_HEAD: Final = f"""\
# Configuration

<!-- Generated: `python -m docs.generators.configuration > docs/configuration.md` -->

`kubeproxy run` takes kube-proxy's flags and, with `--config`, kube-proxy's file: `apiVersion` `{API_VERSION}`,
`kind` `{KIND}`, in YAML or JSON. Settings that kube-proxy does not have are in the group `kubeproxy` of the
same file. Every field is optional. Differences from kube-proxy: [migration.md](migration.md).

```yaml
apiVersion: {API_VERSION}
kind: {KIND}
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
kubeproxy:
  manifests:
    paths: [/etc/kubeproxy/manifests]
```

- `kubeproxy check --config FILE` prints every fault on a line: `field: found X; allowed: Y`. A configuration with a
  fault is never used: `run` ends with exit status 64 and changes nothing; a reload keeps the old configuration.
- `kubeproxy run --write-config-to FILE` writes the whole configuration, including defaults.
- Unknown fields and fields given twice cause a warning and are otherwise ignored, as in kube-proxy.
- `null` is the same as leaving a field out; so are `0` and the empty value in the fields marked †, as in kube-proxy.
- Durations are Go's: `250ms`, `30s`, `1h15m`.

**File and flags.** With `--config`, kube-proxy's own settings come from the file alone; their flags are ignored, and a
warning lists them. The flags that override the file are marked "overrides file": `--hostname-override`, those for
logging, and those of the group `kubeproxy` (`--master` among them).

**Reload.** SIGHUP reads the file again. A change takes effect live or at the next start ("restart"). Fields marked
"none" have no effect: they are accepted so that kube-proxy's files work unchanged, and one line at start lists those
that are set.
"""

_FLAGS_HEAD: Final = """\
## Flags without a field

As in Go programs, `_` may replace `-` in names, `--name` alone means `--name=true` for a value of true or false, and
`-v=2`, `-v 2` and `--v=2` are the same. Lists are separated by commas or given by repeating the flag; `--manifests` can
only be repeated.
"""


def render() -> str:
    """The document."""
    return "\n".join([_HEAD, *_field_tables(), _FLAGS_HEAD, *_flag_table(), ""])


def _field_tables() -> Iterator[str]:
    groups: dict[str, list[Field]] = {"": []}
    for field in fields().values():
        groups.setdefault(field.path.rpartition(".")[0], []).append(field)
    for group, members in groups.items():
        yield f"## `{group}`\n" if group else "## At the root\n"
        yield "| field | flag | value | default | change | meaning |"
        yield "|---|---|---|---|---|---|"
        for field in members:
            yield _row(field)
        yield ""


def _row(field: Field) -> str:
    flag = flags().get(field.flag)
    cells = [
        f"`{field.path.rpartition('.')[2]}`" + (" †" if field.zero_is_default else ""),
        "" if flag is None else f"`{flag.dashed}`" + (" overrides file" if flag.overrides_file else ""),
        allowed(field.type),
        f"`{default}`" if (default := text_of(field.default)) else "",
        field.effect,
        field.text,
    ]
    return _cells(cells)


def _flag_table() -> Iterator[str]:
    yield "| flag | value | meaning |"
    yield "|---|---|---|"
    with_field = {field.flag for field in fields().values()}
    for flag in flags().values():
        if flag.name not in with_field:
            yield _cells([f"`{flag.dashed}`", f"`{notation(flag.kind)}`", _text(flag)])


def _text(flag: Flag) -> str:
    return f"{flag.text} Without effect." if flag.ignored else flag.text


def _cells(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
