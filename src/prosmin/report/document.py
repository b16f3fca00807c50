"""One HTML file with its style and script inside. Nothing is fetched, so it can be mailed or archived."""

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup


def render_document(package: str, *, style: str, script: str, **values: Any) -> str:
    """`page.html` of a package, with two other files of it as style and script; `values` are escaped.

    The policy allows only this style and this script, so a script in a file name cannot run.
    """
    styles = f"{_asset('prosmin.report', 'colours.css')}\n{_asset(package, style)}"
    scripts = _asset(package, script)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string(_asset(package, "page.html")).render(
        style=Markup(styles),
        script=Markup(scripts),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(styles)}; script-src {_hash(scripts)}; "
        "base-uri 'none'; form-action 'none'",
        **values,
    )


def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
