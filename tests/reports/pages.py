"""Reading a page again: its text, its tables and what its script unpacks."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import numpy as np

HOSTILE = "<script>document.title='owned'</script>"
# Column names that would do something if a page took them for anything but text.
HOSTILE_NAMES = (
    HOSTILE,
    "</script><img src=x onerror=\"document.title='owned'\">",
    "$$\\href{javascript:alert(1)}{x}$$ @{x}{safe} {{7*7}} [K]",
)


class Reader(HTMLParser):
    """The text of a page outside scripts and styles, its tables by id, its tags."""

    def __init__(self, html):
        super().__init__()
        self.text, self.tables, self.tags, self.attributes = "", {}, [], []
        self._table = self._hidden = None
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag in ("script", "style"):
            self._hidden = tag
        if tag == "table":
            self._table = self.tables.setdefault(dict(attrs)["id"], [])
        if tag == "tr":
            self._table.append([])
        if tag in ("td", "th"):
            self._table[-1].append("")

    def handle_endtag(self, tag):
        if tag == self._hidden:
            self._hidden = None
        if tag == "table":
            self._table = None
        if tag == "tr":
            self._table[-1] = [cell.strip() for cell in self._table[-1]]

    def handle_data(self, data):
        if self._hidden:
            return
        self.text += data + " "
        if self._table and self._table[-1] and data.strip():
            self._table[-1][-1] += data


def read(path):
    return Reader(path.read_text(encoding="utf-8"))


def content(path):
    """What the page's script unpacks: the figures and its data."""
    packed = re.search(r'<script type="text/plain" id="content">([^<]*)</script>', path.read_text(encoding="utf-8"))[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def objects(value, name):
    """Every Bokeh object of a class in a page's content, as its attributes."""
    if isinstance(value, dict):
        if value.get("type") == "object" and value.get("name") == name:
            yield value.get("attributes", {})
        for inner in value.values():
            yield from objects(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from objects(inner, name)


def columns(attributes):
    """The columns of a data source that hold numbers."""
    entries = dict(attributes["data"]["entries"])
    return {
        name: np.frombuffer(buffer(value["array"]["data"]), value["dtype"])
        for name, value in entries.items()
        if isinstance(value, dict) and value["type"] == "ndarray"
    }


def buffer(text):
    """An array's bytes, which Bokeh compresses where that is shorter."""
    found = base64.b64decode(text)
    return gzip.decompress(found) if found[:2] == b"\x1f\x8b" else found
