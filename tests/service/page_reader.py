"""Reads the page as a browser would: what is in it, and whether it is put together right."""

from __future__ import annotations

from html.parser import HTMLParser

from starlette.testclient import TestClient

VOID = {"meta", "link", "input", "br"}
ALLOWED = {
    *VOID,
    *("html", "head", "title", "body", "header", "main", "footer", "nav", "section", "h1", "h2", "h3", "h4"),
    *("p", "a", "ul", "li", "dl", "dt", "dd", "code", "small", "time", "div", "details", "summary"),
    *("pre", "svg", "g", "line", "path", "text", "desc"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "form", "label", "select", "option", "button"),
}


class Page(HTMLParser):
    """Elements as (tag, attributes), text by element, and faults: what does not belong or does not fit."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.faults: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self._open]
        self._check_names()

    @property
    def text(self) -> str:
        """All text, with single blanks."""
        return " ".join(" ".join(text for _, text in self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of each element of a kind."""
        return [attributes for found, attributes in self.elements if found == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag not in ALLOWED:
            self.faults.append(f"<{tag}>")
        self.faults += [
            f"{name} in <{tag}>" for name in attributes if name.startswith("on") or name == "style"
        ]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))

    def _check_names(self) -> None:
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        self.faults += [f"id {name} is there twice" for name in ids if ids.count(name) > 1]
        labelled = {attributes["for"] for attributes in self.all("label")}
        for tag, attributes in self.elements:
            for name in ("for", "aria-labelledby", "aria-describedby"):
                for one in attributes.get(name, "").split():
                    if one not in ids:
                        self.faults.append(f"{name}={one} leads nowhere")
            entered = tag == "select" or (tag == "input" and attributes.get("type") != "hidden")
            if entered and attributes.get("id") not in labelled:
                self.faults.append(f"<{tag}> {attributes} has no label")


def read(client: TestClient, status: int = 200, **query: str) -> Page:
    """The page at an address, which must have this status and be put together right."""
    answer = client.get("/", params=query)
    assert answer.status_code == status, answer.text
    page = Page(answer.text)
    assert page.faults == []
    return page
