"""A page as one HTML file that needs nothing else: style, script, plotting library and data are inside.

The plotting library and the data of the figures are compressed; the browser unpacks them. Everything that is text stays
text, readable without a script. What a log calls its columns is data: the template escapes it, and the page's policy lets
only the two scripts run whose digests it names, and loads nothing from elsewhere.
"""

import base64
import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from ringfence import __version__
from ringfence.errors import MissingExtra
from ringfence.files import atomic_write
from ringfence.reports.html.parts import Page

FOLDER = Path(__file__).parent


def write_page(page: Page, path: Path) -> Path:
    """Write the page, all or nothing. A file that exists is replaced: ask before you call."""
    text = html_of(page)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def html_of(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    script, library = (FOLDER / "page.js").read_text(encoding="utf-8"), bokeh_script()
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text: str = environment.get_template("page.html").render(
        page=page,
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        script=script,
        library=packed_library(),
        content=packed(json.dumps(content_of(page), separators=(",", ":"), allow_nan=False).encode()),
        digests=" ".join(f"'sha256-{digest(text)}'" for text in (script, library)),
        version=__version__,
    )
    return text


def content_of(page: Page) -> dict[str, Any]:
    """The figures as Bokeh's JSON, in the order of the page, and the data of its script."""
    from bokeh.embed import json_item

    return {"figures": [json_item(plot.model, f"figure-{i}") for i, plot in enumerate(page.plots)], **page.data}


@cache
def bokeh_script() -> str:
    """The core of BokehJS, without widgets and tables, which pages do not use."""
    require_bokeh()
    from bokeh.resources import Resources

    (script,) = Resources(mode="inline", components=["bokeh"]).js_raw[:1]
    return str(script)


@cache
def packed_library() -> str:
    return packed(bokeh_script().encode())


def packed(content: bytes) -> str:
    """Compressed text that needs no escaping; the same content gives the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def digest(text: str) -> str:
    """As a content security policy names a script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def require_bokeh() -> None:
    """Pages are optional where Bokeh was left out of an installation."""
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise MissingExtra("a page needs Bokeh: pip install bokeh") from error
