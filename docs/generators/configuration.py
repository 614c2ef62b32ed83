"""docs/configuration.md, generated from the schema and the table of flags:
``python -m docs.generators.configuration > docs/configuration.md``."""

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

`kubeproxy run` takes kube-proxy's flags by their names and, with `--config`, kube-proxy's file: `apiVersion`
`{API_VERSION}`, `kind` `{KIND}`, in YAML or JSON. Settings that kube-proxy does
not have stand in one group of the same file, `kubeproxy`. Every field may be left out. What differs from kube-proxy:
[migration.md](migration.md).

```yaml
apiVersion: {API_VERSION}
kind: {KIND}
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
kubeproxy:
  manifests:
    paths: [/etc/kubeproxy/manifests]
```

- `kubeproxy check --config FILE` names every fault, one a line: `field: found X; allowed: Y`. A configuration with a
  fault is never used: `run` ends with exit status 64 and has touched nothing; a reload keeps what was there.
- `kubeproxy run --write-config-to FILE` writes the whole configuration, defaults and all.
- Unknown fields and fields given twice are warned of and otherwise ignored, as kube-proxy does.
- `null` is the same as leaving a field out; so are `0` and nothing in the fields marked †, as in kube-proxy.
- Durations are Go's: `250ms`, `30s`, `1h15m`.

**File and flags.** With `--config`, kube-proxy's own settings come from the file alone; their flags are ignored, and
named in a warning. The flags that still count, and win over the file, are marked "wins": `--hostname-override`, those
for logging, and those of the group `kubeproxy` (`--master` among them).

**Reload.** SIGHUP reads the file again. A change takes effect live, or at the next start ("restart"). Fields that say
"none" have no meaning here: they are accepted, so that kube-proxy's files work as they are, and one line at start names
those which were set to something.
"""

_FLAGS_HEAD: Final = """\
## Flags without a field

As in Go programs, `_` may stand for `-` in names, `--name` alone means `--name=true` where the value is true or false,
and `-v=2`, `-v 2` and `--v=2` are the same. Lists are separated by commas or given by repeating the flag; `--manifests`
can only be repeated.
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
        yield "| field | flag | value | default | change | what it is for |"
        yield "|---|---|---|---|---|---|"
        for field in members:
            yield _row(field)
        yield ""


def _row(field: Field) -> str:
    flag = flags().get(field.flag)
    cells = [
        f"`{field.path.rpartition('.')[2]}`" + (" †" if field.zero_is_default else ""),
        "" if flag is None else f"`{flag.dashed}`" + (" wins" if flag.wins else ""),
        allowed(field.type),
        f"`{default}`" if (default := text_of(field.default)) else "",
        field.effect,
        field.text,
    ]
    return _cells(cells)


def _flag_table() -> Iterator[str]:
    yield "| flag | value | what it is for |"
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
